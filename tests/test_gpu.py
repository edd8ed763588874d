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


def test_chains_on_a_gpu(data, tmp_path):
    """Moments as on a CPU, a verdict that agrees, and a run that is stopped and resumed to the same bits."""
    moments = {}
    for device in ("cpu", "cuda"):
        target = target_on(device, data)
        laplace = burnish.fit_laplace(target).posterior
        fit = burnish.fit_hmc(target, laplace, generator=burnish.make_generator(0, device))
        assert fit.converged
        assert fit.posterior.samples.device.type == device
        moments[device] = fit.posterior.samples.mean(0).cpu(), fit.posterior.samples.std(0).cpu(), fit.ess_bulk
        for posterior in (laplace, fit.posterior):
            assert burnish.judge(target, posterior, generator=burnish.make_generator(1, device)).trusted
    error = moments["cpu"][1] * (1 / moments["cpu"][2] + 1 / moments["cuda"][2]) ** 0.5
    assert float(((moments["cpu"][0] - moments["cuda"][0]).abs() / error).max()) < 5.0
    assert torch.allclose(moments["cpu"][1], moments["cuda"][1], rtol=0.1)

    class Interrupted(Exception):
        pass

    class Failing:
        def __init__(self, calls):
            self.dim, self.left = target.dim, calls

        def log_prob_and_grad(self, theta):
            self.left -= 1
            if self.left == 0:
                raise Interrupted
            return target.log_prob_and_grad(theta)

    options = {"num_chains": 16, "min_draws": 30, "max_draws": 30, "checkpoint_seconds": 1e-9}
    path = tmp_path / "chains.safetensors"
    with pytest.raises(Interrupted):
        burnish.fit_hmc(Failing(120), laplace, generator=burnish.make_generator(0, "cuda"), checkpoint=path, **options)
    resumed = burnish.fit_hmc(target, laplace, generator=burnish.make_generator(0, "cuda"), checkpoint=path, **options)
    whole = burnish.fit_hmc(target, laplace, generator=burnish.make_generator(0, "cuda"), **options)
    assert torch.equal(resumed.posterior.samples, whole.posterior.samples)


def test_a_generator_on_the_cpu_is_refused(data):
    posterior = burnish.fit_laplace(target_on("cuda", data)).posterior
    with pytest.raises(ValueError, match="`generator` must live on cuda:0, where the tensors are, got one on cpu"):
        posterior.sample(2, generator=burnish.make_generator(0))


@pytest.fixture
def network(data):
    """Trained for a few steps on the CPU, then moved."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
        optimiser = torch.optim.Adam(network.parameters(), lr=0.03)
        for _ in range(30):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(data[0][:4000]), data[1][:4000]).backward()
            optimiser.step()
    return network.to("cuda")


def parts(data):
    return [(data[0][rows], data[1][rows]) for rows in (slice(0, 4000), slice(4000, 5500), slice(5500, 6000))]


def test_refine_on_a_gpu_is_that_on_a_cpu(network, data, tmp_path):
    """Loaders give batches on the CPU; the result is where the network is, and the same up to rounding elsewhere."""
    train, validation, test = parts(data)
    state, cuda_state = torch.get_rng_state(), torch.cuda.get_rng_state()
    options = {"prior_mean": "head", "prior_precision": 20.0, "method": "flow", "flow": {"max_steps": 20}}
    bnn = burnish.refine(network, train, validation=validation, **options)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(torch.cuda.get_rng_state(), cuda_state)
    assert bnn.samples.is_cuda
    assert bnn.posterior.base.mean.is_cuda
    probs = bnn.predict(test[0]).probs  # inputs on the CPU are moved
    assert probs.is_cuda
    torch.testing.assert_close(bnn(test[0].cuda()).exp(), probs)
    bnn.save(tmp_path / "posterior.safetensors")
    loaded = burnish.load(tmp_path / "posterior.safetensors", network)
    assert torch.equal(loaded.predict(test[0]).probs, probs)

    bnn.to("cpu")
    assert not any(tensor.is_cuda for tensor in (*network.parameters(), *network.buffers(), bnn.samples))
    torch.testing.assert_close(bnn.predict(test[0]).probs, probs.cpu(), rtol=1e-4, atol=1e-5)
    assert network.eval()(test[0]).device.type == "cpu"
    here = burnish.load(tmp_path / "posterior.safetensors", network)  # the fingerprint is that of every device
    assert torch.equal(here.samples, loaded.samples.cpu())
    torch.testing.assert_close(here.predict(test[0].cuda()).probs, probs.cpu(), rtol=1e-4, atol=1e-5)
    fitted = burnish.refine(network, train, validation=validation, **options)
    assert fitted.tuning.data == bnn.tuning.data
    torch.testing.assert_close(fitted.predict(test[0]).probs, probs.cpu(), rtol=0, atol=0.05)


def test_the_posterior_may_be_fitted_elsewhere_than_the_network_is(network, data):
    train, validation, test = parts(data)
    options = {"prior_mean": "head", "prior_precision": 20.0, "method": "laplace"}
    bnn = burnish.refine(network, train, validation=validation, device="cpu", **options)
    assert bnn.posterior.mean.device.type == "cpu"
    assert bnn.samples.is_cuda  # predictions are made where the network is
    again = burnish.refine(network, train, validation=validation, **options)
    torch.testing.assert_close(bnn.predict(test[0]).probs, again.predict(test[0]).probs, rtol=0, atol=0.05)
    network.to("cpu")
    moved = burnish.refine(network, train, validation=validation, device="cuda", **options)
    assert moved.posterior.mean.is_cuda
    assert moved.predict(test[0]).probs.device.type == "cpu"


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch's own, when it reads a program back
def test_every_predictive_on_a_gpu_is_that_on_a_cpu(network, data, tmp_path):
    """Closed forms to rounding, draws to their noise; and selection, export, half precision and abstention run there."""
    train, validation, test = parts(data)
    options = {"prior_mean": "head", "prior_precision": 20.0, "method": "laplace", "num_samples": 20}
    bnn = burnish.refine(network, train, validation=validation, **options)
    features = bnn.backbone(test[0].cuda()).detach()
    scale = bnn.posterior.scale
    assert isinstance(scale, burnish.Dense)
    here = burnish.Gaussian(bnn.posterior.mean.cpu(), burnish.Dense(scale.factor.cpu()))
    for method in ("probit", "bridge"):
        there = burnish.predict(bnn.model, bnn.posterior, features, method=method).probs
        expected = burnish.predict(bnn.model, here, features.cpu(), method=method).probs
        torch.testing.assert_close(there.cpu(), expected, rtol=1e-3, atol=1e-4)
    generator = burnish.make_generator(0, "cuda")
    reference = burnish.predict(bnn.model, bnn.posterior, features, num_samples=4000, generator=generator).probs
    for method in ("mc", "mc-outputs", "linearised"):
        drawn = burnish.predict(bnn.model, bnn.posterior, features, method=method, num_samples=4000, generator=generator)
        torch.testing.assert_close(drawn.probs, reference, rtol=0, atol=0.03)
    for noise in ("antithetic", "sobol"):
        assert burnish.predict(bnn.model, bnn.posterior, features, noise=noise, generator=generator).probs.is_cuda
    chosen = burnish.select_samples(bnn.model, bnn.posterior, features, num_samples=10, generator=generator)
    assert chosen.distance < chosen.drawn_distance
    small = bnn.with_samples(chosen.posterior)
    full = small(test[0].cuda())
    small.export(tmp_path / "network.pt2", format="torch")
    found = torch.export.load(tmp_path / "network.pt2").module()(test[0].cuda())
    torch.testing.assert_close(found["log_probs"], full, rtol=1e-4, atol=1e-4)
    rule = burnish.fit_abstention(small.predict(test[0]), test[1].cuda(), coverage=0.5)
    assert rule.accepts(small.predict(test[0])).is_cuda
    small.bfloat16()
    torch.testing.assert_close(small(test[0].cuda().bfloat16()), full, rtol=0, atol=0.3)
