"""Predictions of the image studies' methods: by groups of draws, by temperature, and by networks trained from scratch."""

import pytest
import torch
from image_cases import SETTINGS, make_setting

from burnish.inference.flipout import variational_network
from burnish.inference.temperature import fit_temperature
from burnish.noise import make_generator
from burnish.predictive import predict_at
from burnish.studies import draw_scores, image_methods
from burnish.studies.architectures import make_network
from burnish.studies.draw_scores import grouped_probs
from burnish.studies.image_methods import MAP, TEMPERATURE, LayerMethods, NetworkMethods
from burnish.studies.image_posteriors import HMC, LA, RECENTRED, REFINE, Fit, posterior
from burnish.studies.image_problem import train_missing
from burnish.studies.training import read_trained


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A setting with networks by VB and CSGHMC, hardly trained."""
    setting = make_setting("ours", tmp_path_factory.mktemp("baselines"), num_epochs=4)
    for kind in ("vb", "csghmc"):
        assert train_missing(setting, kind, (0,), progress=False) == {}
    return setting


@pytest.mark.parametrize("entries", [2**24, 700])
def test_groups_predict_as_each_does_alone(ours, entries, monkeypatch):
    monkeypatch.setattr(draw_scores, "_CHUNK_ENTRIES", entries)  # few entries: a few images at a time
    problem, theta = ours.problem, posterior(ours.problem, LA).draws
    inputs = problem.features("test")
    probs = grouped_probs(problem.model, theta, inputs, 5)
    assert probs.shape == (4, len(inputs), 10)  # of 24 draws, 4 are left over
    for number, group in enumerate(theta[:20].split(5)):
        torch.testing.assert_close(probs[number], predict_at(problem.model, group, inputs).probs)


def test_methods_are_in_the_order_of_tables(paper):
    expected = ["MAP", "MAP-Temp", "LA", "LA-Refine-1", "LA-Refine-2", "recentred LA", "flow", "burnish", "refine", "HMC"]
    assert paper.names == expected
    assert NetworkMethods(paper.setting, "csghmc", 0).names == ["CSGHMC"]
    assert set(image_methods.LABELS) <= set(expected)


def test_the_network_predicts_as_itself_and_at_its_temperature(paper):
    problem = paper.problem
    with torch.no_grad():
        outputs = problem.network(problem.setting.stored("test").float() / 255.0)
    own = fit_temperature(problem.model, problem.theta, problem.batch("validation")).temperature
    assert paper.temperature == own
    warm = LayerMethods(problem)
    warm.__dict__["temperature"] = 1.7  # this network's own may be next to 1
    for methods, name, value in ((paper, MAP, 1.0), (paper, TEMPERATURE, own), (warm, TEMPERATURE, 1.7)):
        expected = torch.softmax(outputs / value, dim=-1)
        torch.testing.assert_close(methods.predict(name, "test", 4).probs, expected)
        torch.testing.assert_close(methods.sets(name, "test", 4), expected.unsqueeze(0))
        assert methods.fit(name) is None


def test_sets_are_disjoint_and_together_all_draws(ours):
    sets = ours.sets(RECENTRED, "test", SETTINGS.few)
    assert len(sets) == SETTINGS.num_draws // SETTINGS.few
    torch.testing.assert_close(sets[0], ours.predict(RECENTRED, "test", SETTINGS.few).probs)
    torch.testing.assert_close(sets.mean(0), ours.predict(RECENTRED, "test", SETTINGS.num_draws).probs)
    torch.testing.assert_close(ours.sets(RECENTRED, "test", SETTINGS.few, 2), sets[:2])
    assert ours.sets(MAP, "test", SETTINGS.few, 2).shape == ours.sets(MAP, "test", SETTINGS.few).shape
    assert ours.sets(RECENTRED, "test", 10 * SETTINGS.num_draws).shape[0] == 1


def test_of_hmc_only_as_many_draws_predict_as_others_have(ours):
    draws = posterior(ours.problem, HMC).draws
    assert len(draws) == 2 * SETTINGS.num_draws
    expected = predict_at(ours.problem.model, draws[: SETTINGS.num_draws], ours.problem.features("test")).probs
    torch.testing.assert_close(ours.predict(HMC, "test", 10**6).probs, expected)


class Shifted(LayerMethods):
    """Biases far from where they were."""

    def fit(self, name):
        fit = super().fit(name)
        draws = fit.draws.clone()
        draws[:, self.problem.num_weights :] += 5.0 * torch.arange(10.0)
        return Fit(draws, fit.facts)


@pytest.mark.parametrize(
    ("protocol", "name", "matters"),
    [("paper", RECENTRED, False), ("paper", "LA-Refine-1", False), ("paper", LA, True), ("ours", RECENTRED, True)],
)
def test_biases_matter_where_the_target_sees_them(protocol, name, matters, request):
    methods = request.getfixturevalue(protocol)
    plain, shifted = (kind.predict(name, "test", 8).probs for kind in (methods, Shifted(methods.problem)))
    assert torch.equal(plain, shifted) != matters


def test_refine_predicts_with_its_biases_under_both_protocols(paper):
    model, draws = paper._layer(REFINE)
    assert model is paper.problem.model
    assert draws.shape[1] == len(paper.problem.theta)


def test_draws_of_a_variational_network_differ_and_are_the_same_next_time(trained):
    methods = NetworkMethods(trained, "vb", 0)
    pixels = trained.stored("test")
    outputs = [image_methods.forward(member, pixels, trained.device) for member in methods._members(3)]
    assert len(outputs) == 3
    assert not torch.allclose(outputs[0], outputs[1], atol=1e-4)
    assert not torch.allclose(outputs[1], outputs[2], atol=1e-4)
    first, again = (methods.predict("VB", "test", 3) for _ in range(2))
    assert torch.equal(first.probs, again.probs)
    torch.testing.assert_close(first.probs, torch.softmax(torch.stack(outputs), -1).mean(0))
    assert methods.sets("VB", "test", 3).shape == (1, len(pixels), 10)


def test_a_variational_network_has_the_trained_weights(trained):
    member = next(NetworkMethods(trained, "vb", 0)._members(1))
    path = trained.workspace.network("made-cifar-10", "vb", 0)
    state = read_trained(path, trained.recipe("vb", 300)).states[-1]
    assert all(torch.equal(value, state[name]) for name, value in member.state_dict().items())
    fresh = variational_network(make_network("tiny", 10, 0), initial_std=1.0, generator=make_generator(0))
    assert set(fresh.state_dict()) == set(state)


def test_csghmc_averages_over_the_networks_that_were_kept(trained):
    methods = NetworkMethods(trained, "csghmc", 0)
    path = trained.workspace.network("made-cifar-10", "csghmc", 0)
    states = read_trained(path, trained.recipe("csghmc", 300)).states
    assert len(states) == 4  # one of each cycle
    inputs, probs = trained.stored("outside svhn").float() / 255.0, []
    network = make_network("tiny", 10, 0).eval()
    for state in states:
        network.load_state_dict(state)
        with torch.no_grad():
            probs.append(torch.softmax(network(inputs), -1))
    assert not torch.allclose(probs[0], probs[-1])
    for count in (1, 20):
        torch.testing.assert_close(methods.predict("CSGHMC", "outside svhn", count).probs, torch.stack(probs).mean(0))
