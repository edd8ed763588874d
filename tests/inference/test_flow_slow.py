"""Slow truths about refinement: the paper's loop in another library, real images."""

import math
import os
import sys
from pathlib import Path

import pytest
import torch
from problems import classification

from burnish.diagnostics import elbo
from burnish.inference.flow import fit_flow, paper_protocol
from burnish.inference.laplace import fit_laplace
from burnish.noise import make_generator
from burnish.posteriors import Gaussian
from burnish.target import Target

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

pytestmark = pytest.mark.slow


@pytest.fixture
def paper_loops(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import paper_protocol as loops

    yield loops
    sys.modules.pop("paper_protocol")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_the_paper_protocol_ends_where_other_implementations_end(paper_loops):
    """The same target, base and steps through `fit_flow`, through plain torch, and through Pyro."""
    target = classification(num_points=1000, num_features=5, num_outputs=3, prior_precision=5.0, dtype=torch.float32)
    laplace = fit_laplace(target).posterior
    base = Gaussian(laplace.mean + 0.05, laplace.scale)
    arguments = (target.data.inputs, target.data.targets, base.mean, base.scale.factor, 5.0)
    options = {"num_layers": 3, "num_steps": 1600, "total_steps": 1600, "seed": 0}
    generator = make_generator(0)
    protocol = paper_protocol(target, base, 3, generator=generator) | {"max_steps": 1600}
    fit = fit_flow(target, base, generator=generator, **protocol)
    ours = elbo(target, fit.posterior, num_samples=4000, generator=generator)
    # the loops report losses without constants: the plain one leaves out the prior's normaliser and the base's entropy
    constant = float(base.entropy()) - 0.5 * target.dim * math.log(2 * math.pi / 5.0)
    lean = torch.tensor(paper_loops.run_lean(*arguments, **options).losses[-400:])
    pyro = torch.tensor(paper_loops.run_pyro(*arguments, **options).losses[-400:])
    for values in (constant - lean, -pyro):
        error = math.hypot(float(values.std()) / 20, ours.standard_error)
        assert ours.value == pytest.approx(float(values.mean()), abs=5 * error + 0.5)


@pytest.mark.data
@pytest.mark.skipif("BURNISH_DATA" not in os.environ, reason="needs Fashion-MNIST under BURNISH_DATA")
def test_recentring_does_what_the_paper_needs_a_flow_for(monkeypatch):
    """Real images, mean-pooled to 49 features: the order of the posteriors by ELBO, and the control variate at work."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from fashion_mnist import read_set

    images, labels = read_set(None, "train")
    features = torch.nn.functional.avg_pool2d(images[:20_000], 4).flatten(1)
    target = Target.last_layer(features, labels[:20_000], prior_precision=40.0)
    off = torch.zeros(target.dim)
    at_start = fit_laplace(target, off, recentre=False).posterior
    laplace = fit_laplace(target).posterior
    generator = make_generator(0)
    protocol = paper_protocol(target, at_start, 1, generator=generator) | {"max_steps": 500}
    paper = fit_flow(target, at_start, generator=generator, **protocol)
    refined = fit_flow(target, laplace, generator=generator)
    values = [elbo(target, q, generator=make_generator(1)).value for q in (at_start, paper.posterior, laplace)]
    assert values == sorted(values)
    assert refined.batch_size is not None
    assert refined.gain > 3 * refined.gain_standard_error
