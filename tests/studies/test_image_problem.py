"""Problems of image studies: which images, which target, and what the paper's protocol does to biases."""

import dataclasses

import pytest
import torch
from image_cases import SETTINGS, make_problem, make_setting, source
from scipy import stats

from burnish.scales import Dense, Diagonal
from burnish.studies import image_problem
from burnish.studies.corruptions import corrupted_mix
from burnish.studies.data import Images
from burnish.studies.image_problem import ImageProblem, forward, train_missing
from burnish.studies.image_settings import ImageSettings
from burnish.studies.made_images import MAX_CLASSES
from burnish.studies.protocols import BENCHMARKS


def numbered(name, split):
    """Images that are their own numbers: those of the test set from 128 on."""
    count, first = (100, 0) if split == "train" else (60, 128)
    numbers = torch.arange(first, first + count)
    return Images(numbers.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 32, 32).contiguous(), numbers % 10)


def numbers_of(images):
    numbers = images.pixels[:, 0, 0, 0].long()
    assert torch.equal(numbers % 10, images.labels)
    return set(numbers.tolist())


@pytest.mark.parametrize(("protocol", "sizes"), [("paper", (100, 12, 48)), ("ours", (80, 20, 60))])
def test_no_image_is_in_two_parts_and_none_is_lost(protocol, sizes, tmp_path):
    setting = dataclasses.replace(make_setting(protocol, tmp_path), source=numbered)
    parts = [numbers_of(setting.images[name]) for name in ("train", "validation", "test")]
    assert tuple(map(len, parts)) == sizes
    assert len(set.union(*parts)) == sum(sizes) == 160
    assert all(number > 127 for number in parts[2])
    assert all((number > 127) == (protocol == "paper") for number in parts[1])


def test_networks_from_scratch_see_the_whole_training_set(tmp_path):
    for protocol in ("paper", "ours"):
        setting = make_setting(protocol, tmp_path)
        assert all(setting.training_images(kind) is source("cifar-10", "train") for kind in ("vb", "csghmc"))
    assert len(setting.training_images("ours")) == 240


@pytest.mark.parametrize("protocol", ["paper", "ours"])
def test_fewer_training_images_are_a_part_of_them_and_the_same_each_time(protocol, tmp_path):
    whole, few, again = (
        dataclasses.replace(make_setting(protocol, tmp_path, num_train=count), source=numbered) for count in (None, 30, 30)
    )
    numbers = numbers_of(few.images["train"])
    assert len(numbers) == 30
    assert numbers < numbers_of(whole.images["train"])
    assert numbers == numbers_of(again.images["train"])
    for name in ("validation", "test"):
        assert torch.equal(few.images[name].pixels, whole.images[name].pixels)
    assert all(numbers_of(few.training_images(kind)) == numbers for kind in (protocol, "vb", "csghmc"))
    enough = dataclasses.replace(make_setting(protocol, tmp_path, num_train=100), source=numbered)
    assert torch.equal(enough.images["train"].pixels, whole.images["train"].pixels)


def test_short_settings_are_for_the_real_networks(tmp_path):
    short = ImageSettings.short()
    setting = dataclasses.replace(make_setting("ours", tmp_path), settings=short)
    assert setting.benchmark is BENCHMARKS["cifar-10"]
    recipes = [setting.recipe(kind, 10_000) for kind in ("ours", "vb", "csghmc")]
    assert {recipe.num_epochs for recipe in recipes} == {short.num_epochs} != {BENCHMARKS["cifar-10"].recipe.num_epochs}
    full = ImageSettings()
    assert (short.num_draws, short.few, short.lengths) == (full.num_draws, full.few, full.lengths)
    assert (short.precisions, short.num_splits) == (full.precisions, full.num_splits)


def test_chains_are_fewer_where_draws_cost_more_and_not_shorter():
    many, few = ImageSettings.usual("cifar-10", "ours"), ImageSettings.usual("cifar-100", "ours")
    assert many == ImageSettings()
    assert few.num_chains < many.num_chains

    def length(settings):
        return settings.spacing * 2 * settings.num_draws // settings.num_chains

    assert length(few) == length(many)


def test_scores_of_few_networks_are_averaged_over_blocks_of_draws():
    found = {protocol: ImageSettings.usual("cifar-100", protocol) for protocol in ("paper", "ours")}
    assert {protocol: settings.num_blocks for protocol, settings in found.items()} == {"paper": 1, "ours": 10}
    draws_of_a_chain = found["ours"].spacing * 2 * found["ours"].num_draws // found["ours"].num_chains
    assert draws_of_a_chain * found["ours"].num_chains >= 10 * found["ours"].num_draws  # HMC keeps as many


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_the_gaussian_at_the_mode_has_the_structure_that_is_asked_for(structure, tmp_path):
    problem = make_problem(make_setting("ours", tmp_path, structure=structure))
    assert isinstance(problem.laplace.posterior.scale, {"full": Dense, "diagonal": Diagonal}[structure])
    assert problem.config()["structure"] == structure


def test_a_covariance_that_does_not_fit_is_refused_before_training(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: asked.append(device) or 2**16)
    make_setting("ours", tmp_path).check_memory()  # which chooses by itself
    assert not asked
    with pytest.raises(MemoryError, match=r"full Hessian of 170 parameters needs .* use a machine with more memory"):
        make_setting("ours", tmp_path, structure="full").check_memory()


def test_networks_of_another_scale_are_refused_before_others_are_trained(tmp_path):
    setting = make_setting("ours", tmp_path)
    make_problem(setting)
    other = make_setting("ours", tmp_path, num_epochs=17)
    with pytest.raises(ValueError, match="cifar-10-ours-0"):
        train_missing(other, "ours", (0, 1), progress=False)
    assert not other.network("ours", 1).exists()


def test_settings_are_the_papers_unless_others_are_asked_for(tmp_path):
    setting = dataclasses.replace(make_setting("paper", tmp_path), settings=ImageSettings())
    assert setting.benchmark is BENCHMARKS["cifar-10"]
    assert setting.recipe("paper", 50_000) == setting.recipe("ours", 50_000) == BENCHMARKS["cifar-10"].recipe
    assert setting.recipe("vb", 50_000) == BENCHMARKS["cifar-10"].variational(50_000)
    assert setting.recipe("csghmc", 50_000) == BENCHMARKS["cifar-10"].cyclical(50_000)
    settings = setting.settings
    assert (settings.num_draws, settings.few, settings.lengths, settings.flow_epochs) == (600, 20, (1, 5, 10, 30), 20)
    assert settings.num_chains * (2 * settings.num_draws // settings.num_chains) == 2 * settings.num_draws


def test_small_settings_train_less_and_a_tiny_network(tmp_path):
    setting = make_setting("paper", tmp_path)
    assert setting.benchmark.architecture == "tiny"
    assert make_setting("paper", tmp_path, dataset="cifar-100").benchmark.num_classes == MAX_CLASSES
    assert make_setting("paper", tmp_path, dataset="fashion-mnist").benchmark.architecture == "lenet"
    assert make_setting("paper", tmp_path, tiny=False).benchmark.architecture == "wide-resnet"
    recipes = [setting.recipe(kind, 300) for kind in ("paper", "vb", "csghmc")]
    assert {(recipe.num_epochs, recipe.batch_size) for recipe in recipes} == {(SETTINGS.num_epochs, SETTINGS.batch_size)}
    assert sum(map(recipes[2].keeps, range(SETTINGS.num_epochs))) == 4
    assert recipes[2].temperature == 1.0 / 300
    small = ImageSettings.small()
    assert 2 * small.num_draws % small.num_chains == 0


def test_levels_of_a_shift_keep_their_labels(tmp_path):
    grey = make_setting("paper", tmp_path, dataset="fashion-mnist")
    test = grey.images["test"]
    assert grey.levels == tuple(range(0, 181, 15))
    assert torch.equal(grey.stored("shift 0"), test.pixels)
    assert torch.equal(grey.stored("shift 180"), test.pixels.flip(2, 3))
    assert all(torch.equal(grey.labels(f"shift {level}"), test.labels) for level in (0, 45, 180))
    coloured = dataclasses.replace(make_setting("ours", tmp_path), source=numbered)
    test = coloured.images["test"]
    assert torch.equal(coloured.stored("shift 0"), test.pixels)
    pixels, labels, _ = corrupted_mix(test.pixels, test.labels, 3, count=len(test), seed=0)
    assert torch.equal(coloured.stored("shift 3"), pixels)
    assert torch.equal(coloured.labels("shift 3"), labels)


def test_a_shift_is_made_once(tmp_path, monkeypatch):
    setting, levels = make_setting("ours", tmp_path), []

    def counted(pixels, labels, level, **options):
        levels.append(level)
        return corrupted_mix(pixels, labels, level, **options)

    monkeypatch.setattr(image_problem, "corrupted_mix", counted)
    for _ in range(3):
        assert len(setting.stored("shift 2")) == len(setting.labels("shift 2")) == 150
    assert levels == [2]


def test_images_outside_are_test_images_of_the_other_set(tmp_path):
    assert make_setting("ours", tmp_path).stored("outside svhn") is source("svhn", "test").pixels


def test_the_last_layer_of_the_features_is_the_network(paper):
    problem = paper.problem
    outputs = forward(problem.network, problem.setting.stored("test"), problem.device)
    torch.testing.assert_close(problem.model(problem.theta.unsqueeze(0), problem.features("test"))[0], outputs)
    assert problem.features("test") is problem.features("test")


def test_images_pass_in_blocks(paper, monkeypatch):
    problem = paper.problem
    whole = forward(problem.network, problem.setting.stored("test"), problem.device)
    monkeypatch.setitem(image_problem._CHUNKS, "cpu", 7)
    torch.testing.assert_close(forward(problem.network, problem.setting.stored("test"), problem.device), whole)


def test_the_papers_target_is_without_biases_at_the_papers_precision(paper):
    problem = paper.problem
    assert problem.target.dim == problem.num_weights == len(problem.theta) - 10
    assert problem.target.prior_precision == BENCHMARKS["cifar-10"].precision
    weights = problem.theta[: problem.num_weights].unsqueeze(0)
    silent = torch.cat([weights, torch.zeros(1, 10)], dim=1)
    inputs = problem.features("test")
    torch.testing.assert_close(problem.without_bias(weights, inputs), problem.model(silent, inputs))


@pytest.mark.filterwarnings("ignore:the validation is best at the bound")
def test_our_target_has_the_precision_of_the_grid_that_predicts_best(ours, paper):
    problem = ours.problem
    assert problem.target.dim == len(problem.theta)
    assert problem.tuned_target is problem.target
    for target in (problem.target, paper.problem.tuned_target):
        tuning = target.tuning
        assert {candidate.precision for candidate in tuning.candidates} == set(SETTINGS.precisions)
        best = max(tuning.candidates, key=lambda candidate: candidate.score)
        assert target.prior_precision == tuning.precision == best.precision
    assert len(problem.target.data) + len(problem.features("validation")) == 300
    assert paper.problem.tuned_target.dim == paper.problem.target.dim


def test_biases_that_the_likelihood_does_not_see_come_from_the_prior(paper, generator):
    problem, draws = paper.problem, torch.full((4000, paper.problem.num_weights), 0.5)
    lifted = problem.lift(draws, generator=generator)
    assert lifted.shape == (4000, len(problem.theta))
    assert torch.equal(lifted[:, : problem.num_weights], draws)
    std = BENCHMARKS["cifar-10"].precision ** -0.5
    assert stats.kstest(lifted[:, problem.num_weights :].flatten().numpy(), stats.norm(0.0, std).cdf).pvalue > 0.01
    chains = problem.lift(draws.view(8, 500, -1), generator=generator)
    assert chains.shape == (8, 500, len(problem.theta))


def test_under_our_protocol_nothing_is_added(ours, generator):
    draws = torch.randn(5, len(ours.problem.theta), generator=generator)
    assert torch.equal(ours.problem.lift(draws, generator=generator), draws)


def test_a_network_of_another_recipe_is_refused(paper):
    setting = paper.setting
    other = dataclasses.replace(setting, settings=dataclasses.replace(setting.settings, num_epochs=32))
    with pytest.raises(ValueError, match="must be of networks with `num_epochs` 32, got 16"):
        ImageProblem(other, 0)


def test_networks_that_are_there_are_not_trained_again(tmp_path):
    setting = make_setting("paper", tmp_path, num_epochs=1)
    first = make_problem(setting, 0)
    path = setting.workspace.network("made-cifar-10", "paper", 0)
    before = path.stat().st_mtime_ns
    assert train_missing(setting, "paper", (0, 1), progress=False) == {}
    assert path.stat().st_mtime_ns == before
    assert torch.equal(make_problem(setting, 0).theta, first.theta)
    assert not torch.equal(ImageProblem(setting, 1).theta, first.theta)
