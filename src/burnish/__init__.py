"""burnish: a Bayesian posterior for the last layer of any trained network, post hoc, in seconds, checked."""

from burnish import diagnostics, metrics
from burnish.bijections import Affine, Bijection, DiagonalScale, Planar, Radial, Rotation, Shift, SinhArcsinh
from burnish.errors import FitError
from burnish.features import Backbone, Batch, extract_features, split_last_layer
from burnish.heads import LinearHead, Model
from burnish.inference.flow import FlowFit, default_bijections, fit_flow, paper_protocol
from burnish.inference.laplace import LaplaceFit, fit_laplace
from burnish.inference.mode import Mode, find_mode
from burnish.inference.prior import prior_mean_candidates, tune_prior
from burnish.inference.temperature import TemperatureFit, fit_temperature
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise, Likelihood
from burnish.noise import make_generator
from burnish.posteriors import DensityPosterior, FlowPosterior, Gaussian, Posterior, SamplePosterior
from burnish.predictive import Prediction, predict
from burnish.scales import Dense, Diagonal, Kronecker, Scale
from burnish.target import Expansion, KroneckerCurvature, PriorTuning, SubsampledTarget, Target

__version__ = "0.1.0"

__all__ = [
    "Affine",
    "Backbone",
    "Batch",
    "Bernoulli",
    "Bijection",
    "Categorical",
    "Dense",
    "DensityPosterior",
    "Diagonal",
    "DiagonalScale",
    "Expansion",
    "FitError",
    "FlowFit",
    "FlowPosterior",
    "Gaussian",
    "GaussianNoise",
    "Kronecker",
    "KroneckerCurvature",
    "LaplaceFit",
    "Likelihood",
    "LinearHead",
    "Mode",
    "Model",
    "Planar",
    "Posterior",
    "Prediction",
    "PriorTuning",
    "Radial",
    "Rotation",
    "SamplePosterior",
    "Scale",
    "Shift",
    "SinhArcsinh",
    "SubsampledTarget",
    "Target",
    "TemperatureFit",
    "default_bijections",
    "diagnostics",
    "extract_features",
    "find_mode",
    "fit_flow",
    "fit_laplace",
    "fit_temperature",
    "make_generator",
    "metrics",
    "paper_protocol",
    "predict",
    "prior_mean_candidates",
    "split_last_layer",
    "tune_prior",
]
