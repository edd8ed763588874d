"""The paper's table of texts: every method's scores on test points, and its distance to HMC, as on images."""

from burnish.studies.image_calibration import run_seed, summary

__all__ = ["run_seed", "summary"]
