"""The whole way on a GPU: the same answers as on a CPU, and generators that live where the tensors do."""

import pytest
import torch
from torch import nn

import burnish

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def data():
    generator = burnish.make_generator(0)
    x = torch.randn(6000, 8, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] + 0.5 * torch.randn(6000, generator=generator) > 0).long()


def target_on(device: str, data) -> burnish.Target:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
    backbone, model, _ = burnish.split_last_layer(network, example=data[0][:4].to(device))
    return burnish.Target(model, burnish.extract_features(backbone, data), prior_precision=1.0)


@pytest.mark.parametrize("structure", ["full", "kron", "diagonal"])
def test_laplace_is_that_of_the_cpu(structure, data):
    here, there = (burnish.fit_laplace(target_on(device, data), structure=structure) for device in ("cpu", "cuda"))
    assert there.posterior.mean.is_cuda
    assert torch.allclose(there.posterior.mean.cpu(), here.posterior.mean, atol=1e-3)
    assert there.log_evidence == pytest.approx(here.log_evidence, rel=1e-5)


def test_refinement_and_prediction(data):
    target = target_on("cuda", data)
    generator = burnish.make_generator(0, "cuda")
    fit = burnish.fit_flow(target, burnish.fit_laplace(target).posterior, generator=generator)
    assert fit.gain >= 0.0
    prediction = burnish.predict(target.model, fit.posterior, target.data.inputs, generator=generator)
    assert prediction.probs.is_cuda
    assert burnish.metrics.accuracy(prediction.probs, target.data.targets) > 0.6  # three classes, random features
    assert burnish.diagnostics.elbo(target, fit.posterior, generator=generator).value == pytest.approx(fit.elbo, abs=2.0)
    tuned = burnish.tune_prior(target)
    assert tuned.tuning is not None


def test_a_generator_on_the_cpu_is_refused(data):
    posterior = burnish.fit_laplace(target_on("cuda", data)).posterior
    with pytest.raises(ValueError, match="`generator` must live on cuda:0, where the tensors are, got one on cpu"):
        posterior.sample(2, generator=burnish.make_generator(0))
