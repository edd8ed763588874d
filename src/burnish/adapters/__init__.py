"""burnish for the users of other libraries: one file each, which imports its library where it is needed, if at all."""

from importlib import import_module
from types import ModuleType

__all__: list[str] = []


def require(module: str, *, extra: str, what: str) -> ModuleType:
    """An optional library, or one error that says how to get it.

    Args:
        module: to import.
        extra: of this distribution, which brings it.
        what: wants it, as the beginning of a sentence.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        library = module.split(".")[0]
        raise ModuleNotFoundError(
            f"{what} needs {library}, which is not installed. Install it with `pip install 'burnish[{extra}]'`.",
            name=library,
        ) from None
