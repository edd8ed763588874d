"""burnish: a Bayesian posterior for the last layer of any trained network, post hoc, in seconds, checked."""

from burnish import convergence, diagnostics, metrics
from burnish.batches import Batch
from burnish.bayesian_network import BayesianNetwork, Refinement, load
from burnish.bijections import Affine, Bijection, DiagonalScale, Planar, Radial, Rotation, Shift, SinhArcsinh
from burnish.drift import Drift
from burnish.errors import FitError
from burnish.features import Backbone, extract_features, split_last_layer
from burnish.heads import LinearHead, Model
from burnish.held_out import HeldOut, Score
from burnish.inference.coordinates import Density
from burnish.inference.flow import FlowFit, default_bijections, fit_flow, paper_protocol
from burnish.inference.hmc import HmcFit, fit_hmc
from burnish.inference.laplace import LaplaceFit, fit_laplace
from burnish.inference.mode import Mode, find_mode
from burnish.inference.prior import prior_mean_candidates, tune_prior
from burnish.inference.selection import choose_target
from burnish.inference.temperature import TemperatureFit, fit_temperature
from burnish.ladder import Rung
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise, Likelihood
from burnish.noise import make_generator
from burnish.posteriors import DensityPosterior, FlowPosterior, Gaussian, Posterior, SamplePosterior
from burnish.predictive import Prediction, predict
from burnish.refine import refine
from burnish.scales import Dense, Diagonal, Kronecker, Scale
from burnish.target import Expansion, KroneckerCurvature, PriorCandidate, PriorTuning, SubsampledTarget, Target
from burnish.verdict import Verdict, judge

__version__ = "0.1.0"

__all__ = [
    "Affine",
    "Backbone",
    "Batch",
    "BayesianNetwork",
    "Bernoulli",
    "Bijection",
    "Categorical",
    "Dense",
    "Density",
    "DensityPosterior",
    "Diagonal",
    "DiagonalScale",
    "Drift",
    "Expansion",
    "FitError",
    "FlowFit",
    "FlowPosterior",
    "Gaussian",
    "GaussianNoise",
    "HeldOut",
    "HmcFit",
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
    "PriorCandidate",
    "PriorTuning",
    "Radial",
    "Refinement",
    "Rotation",
    "Rung",
    "SamplePosterior",
    "Scale",
    "Score",
    "Shift",
    "SinhArcsinh",
    "SubsampledTarget",
    "Target",
    "TemperatureFit",
    "Verdict",
    "choose_target",
    "convergence",
    "default_bijections",
    "diagnostics",
    "extract_features",
    "find_mode",
    "fit_flow",
    "fit_hmc",
    "fit_laplace",
    "fit_temperature",
    "judge",
    "load",
    "make_generator",
    "metrics",
    "paper_protocol",
    "predict",
    "prior_mean_candidates",
    "refine",
    "split_last_layer",
    "tune_prior",
]
