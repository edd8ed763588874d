"""burnish: a Bayesian posterior for any trained network, its last layer or all of it, post hoc, in seconds, checked."""

from burnish import convergence, diagnostics, integrals, metrics
from burnish.abstention import Abstention, fit_abstention
from burnish.batches import Batch
from burnish.bayesian_network import BayesianNetwork, Refinement, load
from burnish.bijections import Bijection, Planar, Radial, SinhArcsinh, Subspace
from burnish.drift import Drift
from burnish.errors import FitError
from burnish.evidence import (
    Evidence,
    EvidenceBound,
    EvidenceCandidate,
    EvidenceComparison,
    compare_evidence,
    estimate_evidence,
)
from burnish.features import Backbone, extract_features, split_last_layer
from burnish.flat_network import FlatNetwork, flatten_network
from burnish.heads import Head, LinearHead, Model
from burnish.held_out import HeldOut, Score
from burnish.inference.coordinates import Density
from burnish.inference.ensemble import EnsembleFit, fit_ensemble
from burnish.inference.flipout import FlipoutFit, fit_flipout, kl_divergence, variational_network
from burnish.inference.flow import FlowFit, default_bijections, fit_flow, paper_protocol
from burnish.inference.hmc import HmcFit, fit_hmc
from burnish.inference.laplace import LaplaceFit, fit_laplace
from burnish.inference.mode import Mode, find_mode
from burnish.inference.prior import prior_mean_candidates, tune_prior
from burnish.inference.selection import choose_target
from burnish.inference.sgmcmc import CsghmcFit, fit_csghmc
from burnish.inference.subspace import leading_directions, misfit_directions, subnetwork_directions, trajectory_directions
from burnish.inference.swag import MultiSwagFit, SwagFit, fit_multiswag, fit_swag, swag_gaussian
from burnish.inference.temperature import TemperatureFit, fit_temperature
from burnish.inference.variational import VbFit, fit_vb
from burnish.inference.variational_layers import VariationalConv2d, VariationalLayer, VariationalLinear
from burnish.ladder import Rung
from burnish.layer_scales import BlockDiagonal, Kronecker
from burnish.likelihoods import Bernoulli, Categorical, GaussianNoise, Likelihood
from burnish.linear_bijections import Affine, DiagonalScale, LowRankStretch, Rotation, Shift, Triangular
from burnish.noise import make_generator
from burnish.posterior_files import load_posterior, save_posterior
from burnish.posteriors import (
    DensityPosterior,
    FlowPosterior,
    Gaussian,
    MixturePosterior,
    Posterior,
    SamplePosterior,
    WeightedSamples,
)
from burnish.prediction import Prediction
from burnish.predictive import predict
from burnish.refine import refine
from burnish.sample_selection import SampleSelection, select_samples
from burnish.scales import Dense, Diagonal, LowRank, Scale
from burnish.target import Expansion, KroneckerCurvature, PriorCandidate, PriorTuning, SubsampledTarget, Target
from burnish.verdict import Verdict, judge

__version__ = "0.1.0"

__all__ = [
    "Abstention",
    "Affine",
    "Backbone",
    "Batch",
    "BayesianNetwork",
    "Bernoulli",
    "Bijection",
    "BlockDiagonal",
    "Categorical",
    "CsghmcFit",
    "Dense",
    "Density",
    "DensityPosterior",
    "Diagonal",
    "DiagonalScale",
    "Drift",
    "EnsembleFit",
    "Evidence",
    "EvidenceBound",
    "EvidenceCandidate",
    "EvidenceComparison",
    "Expansion",
    "FitError",
    "FlatNetwork",
    "FlipoutFit",
    "FlowFit",
    "FlowPosterior",
    "Gaussian",
    "GaussianNoise",
    "Head",
    "HeldOut",
    "HmcFit",
    "Kronecker",
    "KroneckerCurvature",
    "LaplaceFit",
    "Likelihood",
    "LinearHead",
    "LowRank",
    "LowRankStretch",
    "MixturePosterior",
    "Mode",
    "Model",
    "MultiSwagFit",
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
    "SampleSelection",
    "Scale",
    "Score",
    "Shift",
    "SinhArcsinh",
    "SubsampledTarget",
    "Subspace",
    "SwagFit",
    "Target",
    "TemperatureFit",
    "Triangular",
    "VariationalConv2d",
    "VariationalLayer",
    "VariationalLinear",
    "VbFit",
    "Verdict",
    "WeightedSamples",
    "choose_target",
    "compare_evidence",
    "convergence",
    "default_bijections",
    "diagnostics",
    "estimate_evidence",
    "extract_features",
    "find_mode",
    "fit_abstention",
    "fit_csghmc",
    "fit_ensemble",
    "fit_flipout",
    "fit_flow",
    "fit_hmc",
    "fit_laplace",
    "fit_multiswag",
    "fit_swag",
    "fit_temperature",
    "fit_vb",
    "flatten_network",
    "integrals",
    "judge",
    "kl_divergence",
    "leading_directions",
    "load",
    "load_posterior",
    "make_generator",
    "metrics",
    "misfit_directions",
    "paper_protocol",
    "predict",
    "prior_mean_candidates",
    "refine",
    "save_posterior",
    "select_samples",
    "split_last_layer",
    "subnetwork_directions",
    "swag_gaussian",
    "trajectory_directions",
    "tune_prior",
    "variational_network",
]
