"""Posteriors through files: every kind bit for bit, also in a new process, and what is refused."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from burnish import fit_laplace, flatten_network, make_generator, predict
from burnish.batches import Batch
from burnish.bijections import SinhArcsinh
from burnish.linear_bijections import Shift
from burnish.posterior_files import load_posterior, save_posterior
from burnish.posteriors import FlowPosterior, Gaussian, MixturePosterior, SamplePosterior
from burnish.storage import write_file
from burnish.target import Target
from test_encoding import draw, same


def test_posteriors_come_back_bit_for_bit(scale, tmp_path):
    gaussian = Gaussian(draw(6), scale)
    flow = FlowPosterior.whitened(gaussian, (SinhArcsinh(draw(6), draw(6)), Shift(draw(6))))
    samples = SamplePosterior(draw(5, 6))
    for posterior in (gaussian, flow, samples, MixturePosterior((gaussian, flow))):
        save_posterior(posterior, tmp_path / "posterior.safetensors")  # replaces the last one
        assert same(load_posterior(tmp_path / "posterior.safetensors"), posterior)


def test_all_layers_predict_the_same_in_a_new_process(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    inputs = torch.randn(20, 3)
    model, theta = flatten_network(network, example=inputs)
    target = Target(model, Batch(inputs, torch.arange(20) % 2), 5.0)
    posterior = fit_laplace(target, theta, structure="kron", recentre=False).posterior
    probs = predict(model, posterior, inputs, generator=make_generator(1)).probs
    save_posterior(posterior, tmp_path / "posterior")
    torch.save({"state": network.state_dict(), "inputs": inputs, "probs": probs}, tmp_path / "rest")
    code = f"""
import torch
from torch import nn
from burnish import flatten_network, load_posterior, make_generator, predict
rest = torch.load({str(tmp_path / "rest")!r}, weights_only=True)
network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
network.load_state_dict(rest["state"])
model, _ = flatten_network(network, example=rest["inputs"])
posterior = load_posterior({str(tmp_path / "posterior")!r})
probs = predict(model, posterior, rest["inputs"], generator=make_generator(1)).probs
raise SystemExit(0 if torch.equal(probs, rest["probs"]) else "other probabilities")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_things_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"`posterior` must be a posterior, got Tensor. Pass the fit's `.posterior`."):
        save_posterior(torch.zeros(3), tmp_path / "file")
    assert not (tmp_path / "file").exists()
    with pytest.raises(FileNotFoundError, match="`path` must be an existing file"):
        load_posterior(tmp_path / "file")
    write_file(tmp_path / "other", {"refinement": 1}, {})
    with pytest.raises(ValueError, match=r"must be a file of `save_posterior`, got .* which holds refinement"):
        load_posterior(tmp_path / "other")
    write_file(tmp_path / "number", {"posterior": 1}, {})
    with pytest.raises(ValueError, match="`path` must hold a posterior, got int"):
        load_posterior(tmp_path / "number")
