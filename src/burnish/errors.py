"""The one exception for numerical failure."""

__all__ = ["FitError"]


class FitError(RuntimeError):
    """A fit could not be completed numerically; the message says what happened and what to do."""
