"""Steps of training: updates and rates as in torch.optim, stated noise, crops that are crops, and graphs on a GPU."""

import copy
import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad
from training_cases import NUM_POINTS, images, tiny

from burnish.inference.flipout import kl_divergence
from burnish.inference.variational_layers import VariationalLayer
from burnish.noise import make_generator
from burnish.studies.recipes import Recipe
from burnish.studies.training_steps import Run, augmented

SHORT = {"num_epochs": 2, "batch_size": 8}
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def drive(run, epochs):
    """Runs these epochs; returns their losses."""
    losses = []
    for epoch in epochs:
        run.begin(epoch)
        for _ in range(run.num_steps):
            run.step()
        losses.append(run.finish())
    return losses


def vector(run):
    return torch.cat([value.flatten() for name, value in run.weights().items() if value.dtype == torch.float32])


def reference_update(name, parameters, recipe):
    """The optimiser of torch; of stochastic-gradient HMC without noise, its definition."""
    if name == "adam":
        return torch.optim.Adam(parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    if name == "sgd":
        options = {"momentum": recipe.momentum, "weight_decay": recipe.weight_decay, "nesterov": True}
        return torch.optim.SGD(parameters, lr=recipe.learning_rate, **options)

    class Sghmc(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for value in group["params"]:
                    velocity = self.state[value].setdefault("velocity", torch.zeros_like(value))
                    force = value.grad + recipe.weight_decay * value
                    velocity.copy_(recipe.momentum * velocity - group["lr"] * force)
                    value += velocity

    return Sghmc(parameters, {"lr": recipe.learning_rate})


@pytest.mark.parametrize(("name", "rate"), [("sgd", 0.05), ("adam", 0.01), ("sghmc", 0.05)])
def test_updates_are_those_of_torch(name, rate):
    options = {"optimizer": name, "learning_rate": rate, "weight_decay": 0.01, "momentum": 0.8}
    recipe = Recipe(**SHORT, **options, mixed_precision=False)
    pixels, labels = images()
    run = Run(tiny(0), pixels, labels, recipe, seed=3)
    network = tiny(0).train()
    optimizer = reference_update(name, network.parameters(), recipe)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * run.num_steps)
    for epoch in range(2):
        (loss,) = drive(run, [epoch])
        losses = []
        for rows in run._order:
            losses.append(cross_entropy(network(pixels[rows].float() / 255.0), labels[rows]))
            optimizer.zero_grad()
            losses[-1].backward()
            optimizer.step()
            schedule.step()
        assert loss == pytest.approx(float(torch.stack(losses).detach().mean()), rel=1e-4)
    expected = network.state_dict()
    moved = [float((expected[key] - value).abs().max()) for key, value in tiny(0).state_dict().items()]
    assert min(moved) > 0.01  # otherwise nothing would be compared
    torch.testing.assert_close(run.weights(), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("capabilities", "mixed", "rounded"),
    [
        ({"avx512_bf16": True}, True, True),
        ({"amx_bf16": True}, True, True),
        ({"avx512_bf16": True}, False, False),
        ({"avx2": True}, True, False),
    ],
)
def test_a_cpu_rounds_to_bfloat16_where_it_has_instructions_for_it(monkeypatch, capabilities, mixed, rounded):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    seen = []
    network = tiny(0)
    network.register_forward_hook(lambda module, inputs, outputs: seen.append(outputs.dtype))
    run = Run(network, *images(), Recipe(**SHORT, mixed_precision=mixed), seed=0)
    (loss,) = drive(run, [0])
    assert set(seen) == {torch.bfloat16 if rounded else torch.float32}
    assert math.isfinite(loss)
    assert {value.dtype for value in network.parameters()} == {torch.float32}


def test_an_epoch_sees_points_once_in_an_order_of_its_own():
    pixels, labels = images()
    run, again = (Run(tiny(0), pixels, labels, Recipe(**SHORT), seed=1) for _ in range(2))
    orders = []
    for epoch in range(3):
        run.begin(epoch)
        orders.append(run._order.flatten().clone())
        assert len(orders[-1]) == 8 * (NUM_POINTS // 8)  # without the few left over
        assert len(set(orders[-1].tolist())) == len(orders[-1])
    again.begin(2)  # whatever came before
    assert torch.equal(again._order.flatten(), orders[2])
    assert not torch.equal(orders[0], orders[1])
    other = Run(tiny(0), pixels, labels, Recipe(**SHORT), seed=2)
    other.begin(2)
    assert not torch.equal(other._order.flatten(), orders[2])


def test_noise_of_a_step_has_its_variance_and_quiet_epochs_have_none():
    """Two runs that differ in temperature alone are the same until noise begins, and then by that noise."""
    pixels, labels = images()
    options = {"num_epochs": 2, "batch_size": NUM_POINTS, "optimizer": "sghmc", "noisy_epochs": 1, "momentum": 0.4}

    def network():
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 400), nn.ReLU(), nn.Linear(400, 3))

    quiet, noisy = (Recipe(**options, temperature=temperature) for temperature in (0.0, 0.3))
    runs = [Run(network(), pixels, labels, recipe, seed=5) for recipe in (quiet, noisy)]
    for run in runs:
        drive(run, [0])
    assert torch.equal(*map(vector, runs))
    for run in runs:
        drive(run, [1])
    noise = vector(runs[1]) - vector(runs[0])
    std = float(noisy.kicks(1, NUM_POINTS)[1])
    assert std**2 == pytest.approx(2 * 0.6 * 0.3 / NUM_POINTS * 0.05)  # half-way along the cosine
    assert float(noise.std()) == pytest.approx(std, rel=4 / math.sqrt(2 * len(noise)))
    assert abs(float(noise.mean())) < 4 * std / math.sqrt(len(noise))


def test_flipout_moves_means_and_standard_deviations():
    pixels, labels = images()
    options = {**SHORT, "optimizer": "adam", "learning_rate": 0.01, "weight_decay": 0.0, "initial_std": 0.05}
    run = Run(tiny(0), pixels, labels, Recipe(**options, kl_weight=0.1), seed=0)
    before = run.weights()
    assert all(math.isfinite(loss) for loss in drive(run, range(2)))
    after = run.weights()
    means, stds = ([name for name, _ in run.network.named_parameters() if kind in name] for kind in ("_mean", "_raw_std"))
    assert len(means) == len(stds) == 5
    for key in means + stds:
        assert float((after[key] - before[key]).abs().max()) > 1e-3, key
    again = Run(tiny(0), pixels, labels, Recipe(**options, kl_weight=0.1), seed=0)
    drive(again, range(2))
    assert torch.equal(vector(again), vector(run))


def test_means_start_at_random_where_a_spread_is_given():
    pixels, labels = images()

    def start(seed, **options):
        run = Run(tiny(0), pixels, labels, Recipe(**SHORT, initial_std=0.05, **options), seed=seed)
        means = [part.moments()["weight"][0] for part in run.network.modules() if isinstance(part, VariationalLayer)]
        return torch.cat([mean.detach().flatten() for mean in means])

    drawn = start(0, mean_spread=0.1)
    assert float(drawn.std()) == pytest.approx(0.1, rel=4 / math.sqrt(2 * len(drawn)))
    assert torch.equal(drawn, start(0, mean_spread=0.1))
    assert not torch.equal(drawn, start(1, mean_spread=0.1))
    own = [part.weight.detach().flatten() for part in tiny(0) if isinstance(part, nn.Conv2d | nn.Linear)]
    torch.testing.assert_close(start(0), torch.cat(own))


def test_layers_that_stay_plain_keep_their_weights():
    class Plain(nn.Conv2d):
        """Of a subclass, which does not become variational."""

    network = tiny(0)
    network[0] = Plain(1, 4, 3, bias=False)
    own = network[0].weight.detach().clone()
    run = Run(network, *images(), Recipe(**SHORT, initial_std=0.05, mean_spread=0.1), seed=0)
    torch.testing.assert_close(run.network[0].weight, own)
    assert isinstance(run.network[3], VariationalLayer)


@pytest.mark.parametrize("estimator", ["flipout", "plain"])
def test_variational_layers_draw_by_the_estimator_of_the_recipe(estimator):
    pixels, labels = images()
    run = Run(tiny(0), pixels, labels, Recipe(**SHORT, initial_std=0.05, estimator=estimator), seed=0)
    found = {part.estimator for part in run.network.modules() if isinstance(part, VariationalLayer)}
    assert found == {estimator}


def test_the_weight_of_the_divergence_draws_to_the_prior():
    pixels, labels = images()
    options = {"num_epochs": 5, "batch_size": 8, "optimizer": "adam", "learning_rate": 0.03, "initial_std": 0.05}
    divergences = []
    for weight in (0.0, 0.1, 100.0):
        recipe = Recipe(**options, weight_decay=0.0, kl_weight=weight, prior_precision=0.1 * NUM_POINTS)
        run = Run(tiny(0), pixels, labels, recipe, seed=0)
        drive(run, range(5))
        divergences.append(float(kl_divergence(run.network, 0.1 * NUM_POINTS).detach()))
    assert divergences == sorted(divergences, reverse=True)
    assert divergences[2] < 0.8 * divergences[0]


def test_batches_larger_than_the_data_are_refused():
    pixels, labels = images()
    Run(tiny(0), pixels, labels, Recipe(batch_size=NUM_POINTS), seed=0)
    with pytest.raises(ValueError, match=f"`batch_size` must be at most {NUM_POINTS}, .* got 45. Pass a smaller one"):
        Run(tiny(0), pixels, labels, Recipe(batch_size=NUM_POINTS + 1), seed=0)


def test_what_was_trained_loads_into_a_fresh_network_and_gives_the_same_outputs():
    pixels, labels = images()
    run = Run(tiny(0), pixels, labels, Recipe(**SHORT), seed=0)
    drive(run, [0])
    kept, fresh = run.weights(), tiny(1)
    fresh.load_state_dict(kept)
    x = pixels.float() / 255.0
    with torch.no_grad():
        torch.testing.assert_close(fresh.eval()(x), run.network.eval()(x))
    run.network.train()
    drive(run, [1])
    assert all(torch.equal(value, fresh.state_dict()[key]) for key, value in kept.items())  # copies, which stay
    assert not torch.equal(kept["0.weight"], run.weights()["0.weight"])


def test_parameters_and_gradients_stay_views_of_one_vector():
    pixels, labels = images()
    run = Run(tiny(0), pixels, labels, Recipe(**SHORT), seed=0)
    drive(run, [0])
    for vector_, attribute in ((run._flat, "data"), (run._grad, "grad")):
        low, high = vector_.data_ptr(), vector_.data_ptr() + vector_.numel() * 4
        for parameter in run.network.parameters():
            assert low <= getattr(parameter, attribute).data_ptr() < high


def test_weights_that_leave_the_finite_numbers_are_seen():
    pixels, labels = images()
    run = Run(tiny(0), pixels, labels, Recipe(num_epochs=1, batch_size=NUM_POINTS, learning_rate=1e300), seed=0)
    assert run.is_finite()
    assert math.isfinite(drive(run, [0])[0])  # the loss was that before the step
    assert not run.is_finite()


def test_training_leaves_the_global_generator_alone(untouched_rng):
    pixels, labels = images()
    for options in ({"augment": True}, {"optimizer": "sghmc", "noisy_epochs": 1}, {"initial_std": 0.1}):
        drive(Run(tiny(0), pixels, labels, Recipe(**SHORT, **options), seed=0), [0])


class TestAugmented:
    HEIGHT, WIDTH = 7, 6

    def candidates(self, images):
        """All crops (N, 9 x 9, ...) of every image with a margin of black, then those of its mirror image."""
        crops = []
        for image in (images, images.flip(-1)):
            windows = pad(image, (4, 4, 4, 4)).unfold(2, self.HEIGHT, 1).unfold(3, self.WIDTH, 1)
            crops.append(windows.permute(0, 2, 3, 1, 4, 5).flatten(1, 2))
        return torch.cat(crops, 1)

    def test_every_image_is_a_crop_of_its_own_and_every_crop_occurs_as_often(self):
        count = 4050
        image = torch.arange(1, 3 * self.HEIGHT * self.WIDTH + 1, dtype=torch.uint8).view(1, 3, self.HEIGHT, self.WIDTH)
        found = augmented(image.expand(count, -1, -1, -1), generator=make_generator(0))
        assert found.shape == (count, 3, self.HEIGHT, self.WIDTH)
        assert found.dtype == torch.uint8
        candidates = self.candidates(image)[0]
        assert len(candidates) == 162
        same = (found.flatten(1)[:, None] == candidates.flatten(1)).all(-1)
        assert torch.equal(same.sum(1), torch.ones(count, dtype=torch.int64))
        counts = same.sum(0).double()
        statistic = float(((counts - 25.0) ** 2 / 25.0).sum())  # of Pearson, with 161 degrees of freedom
        assert abs(statistic - 161) < 4 * math.sqrt(2 * 161)

    def test_images_are_not_mixed_up_and_not_changed(self, generator):
        original = torch.randint(256, (50, 2, self.HEIGHT, self.WIDTH), generator=generator, dtype=torch.uint8)
        before = original.clone()
        found = augmented(original, generator=generator)
        assert torch.equal(original, before)
        assert (self.candidates(original) == found[:, None]).flatten(2).all(-1).any(1).all()

    def test_the_generator_says_all(self, untouched_rng):
        original = torch.arange(200, dtype=torch.uint8).view(10, 1, 4, 5)
        first, again, other = (augmented(original, generator=make_generator(seed)) for seed in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_every_epoch_has_its_own_and_the_source_stays(self):
        pixels, labels = images()
        before = pixels.clone()
        run = Run(tiny(0), pixels, labels, Recipe(**SHORT, augment=True), seed=0)
        run.begin(0)
        first = run._pixels.clone()
        run.begin(1)
        assert not torch.equal(run._pixels, first)
        run.begin(0)
        assert torch.equal(run._pixels, first)
        assert torch.equal(pixels, before)


@pytest.mark.parametrize("name", ["sgd", "adam", "sghmc", "flipout"])
@pytest.mark.parametrize("batch_size", [8, NUM_POINTS])
def test_steps_that_warm_a_graph_up_leave_no_trace(name, batch_size, monkeypatch):
    """With a graph that runs the step whenever it is captured or replayed; also where a single step is left."""
    options = {"num_epochs": 2, "batch_size": batch_size, "optimizer": "adam" if name == "flipout" else name}
    options |= {"noisy_epochs": 1, "temperature": 0.1, "initial_std": 0.05 if name == "flipout" else None}
    pixels, labels = images()
    plain, graphed = (Run(tiny(0), pixels, labels, Recipe(**options), seed=0) for _ in range(2))
    drive(plain, [0])
    for own, other in zip(graphed.state().values(), plain.state().values(), strict=True):
        own.copy_(other)
    graph = SimpleNamespace(register_generator_state=lambda generator: None, replay=graphed._advance)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    graphed._stream = "a stream"
    losses, expected = drive(graphed, [1]), drive(plain, [1])
    assert losses == expected
    assert all(map(torch.equal, graphed.state().values(), plain.state().values()))


class TestOnAGpu:
    pytestmark = ON_GPU
    RECIPES = (
        Recipe(**SHORT, mixed_precision=False, augment=True, learning_rate=0.01),
        Recipe(**SHORT, mixed_precision=False, optimizer="adam", learning_rate=1e-3),
        Recipe(**SHORT, mixed_precision=False, optimizer="sghmc", learning_rate=0.01, noisy_epochs=2, temperature=1e-3),
        Recipe(**SHORT, mixed_precision=False, optimizer="adam", learning_rate=1e-3, initial_std=0.01, kl_weight=0.1),
    )

    def run_on_gpu(self, recipe, *, eager=False):
        pixels, labels = (part.cuda() for part in images())
        run = Run(tiny(0), pixels, labels, recipe, seed=0)
        if eager:
            run._stream = None
        return run

    @pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.optimizer} {recipe.initial_std}")
    def test_captured_steps_are_those_that_are_not(self, recipe):
        captured, eager = self.run_on_gpu(recipe), self.run_on_gpu(recipe, eager=True)
        losses, expected = drive(captured, range(2)), drive(eager, range(2))
        assert losses == pytest.approx(expected, rel=1e-2)
        torch.testing.assert_close(vector(captured), vector(eager), rtol=1e-2, atol=1e-3)

    @pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.optimizer} {recipe.initial_std}")
    def test_a_graph_captured_in_a_later_epoch_draws_the_same_noise(self, recipe):
        whole, resumed = self.run_on_gpu(recipe), self.run_on_gpu(recipe)
        drive(whole, [0])
        state = {name: copy.deepcopy(value) for name, value in whole.state().items()}
        for name, value in resumed.state().items():
            value.copy_(state[name])
        drive(whole, [1])
        drive(resumed, [1])
        torch.testing.assert_close(vector(resumed), vector(whole), rtol=1e-2, atol=1e-3)

    def test_a_run_of_a_single_step_can_be_captured(self):
        """Steps that warm a graph up must not go beyond the last one."""
        pixels, labels = (part.cuda() for part in images())
        run = Run(tiny(0), pixels, labels, Recipe(num_epochs=1, batch_size=NUM_POINTS), seed=0)
        assert all(math.isfinite(loss) for loss in drive(run, [0]))
        assert run.is_finite()

    def test_mixed_precision_trains_as_well(self):
        pixels, labels = (part.cuda() for part in images())
        run = Run(tiny(0), pixels, labels, Recipe(num_epochs=10, batch_size=8, learning_rate=0.05), seed=0)
        losses = drive(run, range(10))
        assert losses[-1] < 0.5 * losses[0]
