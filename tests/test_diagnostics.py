"""Diagnostics against double loops, closed forms and conjugate posteriors."""

import ast
import itertools
import math
from pathlib import Path

import pytest
import torch

from burnish import diagnostics
from burnish.diagnostics import Elbo, Importance, class_contrasts, elbo, importance, median_bandwidth, mmd
from burnish.heads import LinearHead
from burnish.likelihoods import GaussianNoise
from burnish.noise import make_generator
from burnish.posteriors import FlowPosterior, Gaussian, SamplePosterior
from burnish.scales import Dense, Diagonal
from burnish.target import Target


def normal(num_samples, dim, seed, dtype=torch.float64):
    return torch.randn(num_samples, dim, generator=make_generator(seed), dtype=torch.float64).to(dtype)


def naive_mmd(samples, reference, bandwidth, unbiased):
    def kernel(x, y):
        return math.exp(-sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / bandwidth**2)

    def within(points):
        pairs = [
            kernel(x, y) for (i, x), (j, y) in itertools.product(enumerate(points), repeat=2) if not (unbiased and i == j)
        ]
        return sum(pairs) / len(pairs)

    xs, ys = samples.tolist(), reference.tolist()
    across = [kernel(x, y) for x in xs for y in ys]
    return within(xs) + within(ys) - 2 * sum(across) / len(across)


class TestBandwidth:
    def test_by_hand(self):
        """Distances 1, 2 and 3 between points on a line; with a fourth, 1, 1, 2, 2, 3, 4 has the median 2."""
        points = torch.tensor([[0.0], [1.0], [3.0], [-1.0]])
        assert median_bandwidth(points[:3]) == pytest.approx(2.0)
        assert median_bandwidth(points) == pytest.approx(2.0)

    def test_even_number_of_pairs(self):
        """Distances 1, 2, 4, 3, 6, 7: halfway between 3 and 4."""
        assert median_bandwidth(torch.tensor([[0.0], [1.0], [3.0], [-4.0]])) == pytest.approx(3.5)

    def test_first_points_only(self):
        points = normal(60, 3, 0)
        assert median_bandwidth(points, max_points=20) == median_bandwidth(points[:20])
        expected = torch.nn.functional.pdist(points).quantile(0.5)
        assert median_bandwidth(points) == pytest.approx(float(expected))

    def test_refuses_what_has_none(self):
        with pytest.raises(ValueError, match=r"`reference` must have distinct rows.*`bandwidth`"):
            median_bandwidth(torch.full((10, 3), 0.1))
        with pytest.raises(ValueError, match=r"`reference` must have distinct rows"):
            median_bandwidth(torch.cat([normal(2, 5, 0), normal(1, 5, 1).expand(20, 5)]) + 1e3)
        with pytest.raises(ValueError, match=r"`reference` must be .* S >= 2, got torch.float32 of shape \(1, 3\)"):
            median_bandwidth(torch.zeros(1, 3))
        with pytest.raises(ValueError, match=r"`max_points` must be at least 2, got 1"):
            median_bandwidth(normal(5, 2, 0), max_points=1)


class TestMmd:
    @pytest.mark.parametrize("unbiased", [True, False])
    @pytest.mark.parametrize("bandwidth", [0.5, 3.0])
    def test_all_pairs(self, unbiased, bandwidth):
        samples, reference = normal(13, 3, 0) + 0.5, normal(17, 3, 1)
        expected = naive_mmd(samples, reference, bandwidth, unbiased)
        assert mmd(samples, reference, bandwidth=bandwidth, unbiased=unbiased) == pytest.approx(expected, abs=1e-14)

    def test_bandwidth_is_that_of_the_reference(self):
        samples, reference = normal(20, 3, 0), 2.0 * normal(30, 3, 1)
        assert mmd(samples, reference) == mmd(samples, reference, bandwidth=median_bandwidth(reference))

    @pytest.mark.parametrize("entries", [1, 100])
    def test_chunks_make_no_difference(self, monkeypatch, entries):
        samples, reference = normal(40, 3, 0), normal(30, 3, 1)
        whole = mmd(samples, reference)
        monkeypatch.setattr(diagnostics, "_CHUNK_ENTRIES", entries)
        assert mmd(samples, reference) == pytest.approx(whole, abs=1e-13)

    @pytest.mark.parametrize("dim", [1, 8])
    def test_closed_form_for_gaussians(self, dim):
        """For x - y ~ N(delta, v I), E k = (1 + 2 v / b^2)^(-d/2) exp(-|delta|^2 / (b^2 + 2 v))."""
        shift, spread, bandwidth, repeats = 0.7, 1.5, 1.3 * math.sqrt(dim), 200
        delta = torch.full((dim,), shift / math.sqrt(dim), dtype=torch.float64)

        def expected_kernel(squared_shift, variance):
            ratio = bandwidth**2 + 2 * variance
            return (bandwidth**2 / ratio) ** (dim / 2) * math.exp(-squared_shift / ratio)

        expected = (
            expected_kernel(0.0, 2 * spread**2) + expected_kernel(0.0, 2.0) - 2 * expected_kernel(shift**2, 1.0 + spread**2)
        )
        generator = make_generator(dim)
        values = torch.tensor(
            [
                mmd(
                    delta + spread * torch.randn(30, dim, generator=generator, dtype=torch.float64),
                    torch.randn(40, dim, generator=generator, dtype=torch.float64),
                    bandwidth=bandwidth,
                )
                for _ in range(repeats)
            ]
        )
        error = float(values.std()) / math.sqrt(repeats)
        assert abs(float(values.mean()) - expected) < 4 * error
        assert error < 0.1 * expected  # the test would notice an error of this size

    def test_zero_on_average_for_one_distribution(self):
        """Splits of independent draws: the unbiased statistic averages to zero, the biased one does not."""
        pool = normal(300 * 50, 4, 2).reshape(300, 50, 4)
        unbiased, biased = (
            torch.tensor([mmd(draw[:20], draw[20:], bandwidth=2.0, unbiased=flag) for draw in pool])
            for flag in (True, False)
        )
        error = float(unbiased.std()) / math.sqrt(300)
        assert abs(float(unbiased.mean())) < 4 * error
        assert bool((unbiased < 0).any())
        assert bool((biased >= unbiased).all())
        assert bool((biased >= 0).all())
        assert float(biased.mean()) > 10 * error

    def test_same_samples_have_no_discrepancy(self):
        samples = normal(30, 3, 0)
        assert mmd(samples, samples, unbiased=False) == pytest.approx(0.0, abs=1e-14)

    def test_invariances(self):
        """The order of rows, rotations, and shifts a million times as large as the spread."""
        samples, reference = normal(30, 3, 0) + 0.3, normal(40, 3, 1)
        rotation = torch.linalg.qr(normal(3, 3, 2)).Q
        value = mmd(samples, reference)
        assert mmd(samples.flip(0), reference.roll(3, 0)) == pytest.approx(value, abs=1e-13)
        assert mmd(samples @ rotation, reference @ rotation) == pytest.approx(value, abs=1e-13)
        assert mmd(samples + 1e6, reference + 1e6) == pytest.approx(value, abs=1e-8)

    def test_far_apart(self):
        """Nothing across, so the within terms remain; distances within a set must survive its being far away."""
        samples, reference = normal(30, 3, 0), normal(40, 3, 1)
        far = mmd(samples + 1e6, reference, bandwidth=2.0)
        expected = mmd(samples, reference + 100.0, bandwidth=2.0)
        assert far == pytest.approx(expected, abs=1e-8)

    def test_float32_is_computed_in_float64(self):
        samples, reference = normal(30, 3, 0, torch.float32), normal(40, 3, 1, torch.float32)
        assert mmd(samples, reference) == mmd(samples.double(), reference.double())

    def test_refusals(self):
        samples = normal(10, 3, 0)
        with pytest.raises(ValueError, match=r"`samples` must have the 2 dimensions of `reference`, got 3"):
            mmd(samples, samples[:, :2])
        with pytest.raises(ValueError, match=r"`samples` must be .* S >= 2, got torch.float64 of shape \(1, 3\)"):
            mmd(samples[:1], samples)
        assert mmd(samples[:1], samples, unbiased=False) > 0
        with pytest.raises(ValueError, match=r"`reference` must be .*shape \(S, d\).*got torch.float64 of shape \(3,\)"):
            mmd(samples, samples[0])
        with pytest.raises(TypeError, match=r"`samples` must be torch.float64 on cpu like `reference`, got torch.float32"):
            mmd(samples.float(), samples)
        with pytest.raises(TypeError, match=r"`reference` must be a torch.Tensor, got list"):
            mmd(samples, samples.tolist())
        with pytest.raises(ValueError, match=r"`samples` must be finite, got 1 NaN.*diverged"):
            mmd(torch.where(samples == samples.max(), math.nan, samples), samples)
        with pytest.raises(ValueError, match=r"`bandwidth` must be positive and finite, got 0"):
            mmd(samples, samples, bandwidth=0.0)


class TestClassContrasts:
    @pytest.mark.parametrize("bias", [True, False])
    def test_rows_less_their_mean(self, bias):
        head = LinearHead(3, 4, bias)
        theta, inputs = normal(5, head.dim, 0), normal(7, 3, 1)
        contrasts = class_contrasts(theta, head)
        assert contrasts.shape == theta.shape
        weight = theta[:, :12].reshape(5, 4, 3)
        expected = (weight - weight.mean(1, keepdim=True)).reshape(5, 12)
        torch.testing.assert_close(contrasts[:, :12], expected)
        if bias:
            torch.testing.assert_close(contrasts[:, 12:], theta[:, 12:] - theta[:, 12:].mean(1, keepdim=True))
        # Nothing that softmax sees is lost, and nothing that it does not see is left.
        torch.testing.assert_close(head(contrasts, inputs).softmax(-1), head(theta, inputs).softmax(-1))
        torch.testing.assert_close(head.to_matrix(contrasts).sum(-2), torch.zeros(5, 3 + bias, dtype=torch.float64))
        torch.testing.assert_close(class_contrasts(contrasts, head), contrasts)
        torch.testing.assert_close(class_contrasts(theta[0], head), contrasts[0])

    def test_common_shifts_vanish(self):
        head = LinearHead(3, 4)
        theta, common = normal(5, head.dim, 0), normal(5, 4, 1)
        moved = theta + head.from_matrix(common.unsqueeze(1).expand(5, 4, 4))
        torch.testing.assert_close(class_contrasts(moved, head), class_contrasts(theta, head))

    def test_refusals(self):
        with pytest.raises(ValueError, match=r"`head.num_outputs` must be at least 2 .*got 1"):
            class_contrasts(torch.zeros(2, 4), LinearHead(3, 1))
        with pytest.raises(TypeError, match=r"`head` must be a LinearHead, got Linear"):
            class_contrasts(torch.zeros(2, 4), torch.nn.Linear(3, 2))
        with pytest.raises(ValueError, match=r"`theta` must have 8 entries"):
            class_contrasts(torch.zeros(2, 4), LinearHead(3, 2))


def gaussian_log_ratios(std, num_draws, seed, *, dim=1, log_evidence=0.0):
    """Draws from N(0, std^2 I) towards exp(log_evidence) N(0, I)."""
    squared = (normal(num_draws, dim, seed) ** 2).sum(1)
    return log_evidence + 0.5 * (1.0 - std**2) * squared + dim * math.log(std)


class TestImportance:
    @pytest.mark.parametrize("rounding", [0.0, 1e-13])
    def test_exact_posterior(self, rounding):
        """Equal ratios, and ratios equal but for rounding, which has a tail that means nothing."""
        result = importance(-123.5 + rounding * normal(1000, 1, 0)[:, 0])
        assert result.khat == -math.inf
        assert result.ess == pytest.approx(1000)
        assert result.log_evidence == pytest.approx(-123.5, abs=1e-11)

    @pytest.mark.parametrize("seed", range(5))
    def test_wider_proposal_is_fine(self, seed):
        """N(0, 1.5^2) for N(0, 1): bounded weights, E w^2 = 1.5^2 / sqrt(2 * 1.5^2 - 1)."""
        result = importance(gaussian_log_ratios(1.5, 2000, seed, log_evidence=-40.0))
        second_moment = 1.5**2 / math.sqrt(2 * 1.5**2 - 1)
        error = math.sqrt((second_moment - 1) / 2000)
        assert result.khat < 0.5
        assert result.ess == pytest.approx(2000 / second_moment, rel=0.05)
        assert result.log_evidence == pytest.approx(-40.0, abs=4 * error)

    @pytest.mark.parametrize("seed", range(5))
    def test_narrower_proposal_has_a_heavy_tail(self, seed):
        """N(0, 0.5^2 I) for N(0, I): weights without second moment; in ten dimensions a few outweigh the rest."""
        result = importance(gaussian_log_ratios(0.5, 2000, seed, dim=10))
        assert result.khat > 0.7
        assert result.ess < 200

    def test_khat_is_the_shape_of_the_tail(self):
        """Weights that are exactly Pareto with shape 1/2."""
        uniform = torch.rand(20_000, generator=make_generator(0), dtype=torch.float64)
        assert importance(-0.5 * uniform.log()).khat == pytest.approx(0.5, abs=0.2)
        # The other sign would be weights bounded by one, with shape -1 / 0.5.
        assert importance(0.5 * uniform.log()).khat < 0.0

    def test_constants_and_order_do_not_matter(self):
        ratios = gaussian_log_ratios(1.2, 500, 0)
        result = importance(ratios)
        moved = importance(ratios.flip(0) + 1e4)
        assert moved.khat == pytest.approx(result.khat, abs=1e-6)
        assert moved.ess == pytest.approx(result.ess, rel=1e-6)
        assert moved.log_evidence == pytest.approx(result.log_evidence + 1e4, abs=1e-9)

    def test_evidence_is_from_the_weights_as_they_are(self):
        ratios = gaussian_log_ratios(0.6, 300, 0)
        assert importance(ratios).log_evidence == pytest.approx(math.log(float(ratios.exp().mean())))
        assert importance(ratios.float()).log_evidence == pytest.approx(importance(ratios).log_evidence, abs=1e-6)

    def test_weight_zero(self):
        """Half of the draws outside the target's support: half of the evidence, and the effective size of the rest."""
        inside = gaussian_log_ratios(1.5, 1000, 0)
        result = importance(torch.cat([inside, torch.full((1000,), -math.inf, dtype=torch.float64)]))
        assert result.log_evidence == pytest.approx(importance(inside).log_evidence - math.log(2))
        assert result.ess == pytest.approx(importance(inside).ess, rel=0.02)

    @pytest.mark.parametrize(
        "ratios",
        [
            torch.linspace(0.0, -1e5, 1000),
            torch.cat([torch.zeros(1), torch.full((99,), -math.inf)]),
            torch.cat([torch.zeros(1), torch.linspace(-2000.0, -3000.0, 99)]),
        ],
    )
    def test_one_draw_outweighs_all(self, ratios):
        """The library's own k-hat would be small here, since its fit fails."""
        result = importance(ratios)
        assert result == Importance(math.inf, pytest.approx(1.0), pytest.approx(-math.log(len(ratios))))

    def test_flat_top(self):
        """Two values of the weights, and the whole tail at the upper one: a bounded, constant tail."""
        result = importance((torch.arange(100) % 2).double() * math.log(3.0))
        assert result.khat == -math.inf
        assert result.ess == pytest.approx((50 * 3 + 50) ** 2 / (50 * 9 + 50))

    @pytest.mark.parametrize("num_draws", [25, 225, 226])
    def test_few_draws(self, num_draws):
        result = importance(gaussian_log_ratios(1.2, num_draws, 0))
        assert math.isfinite(result.khat)
        assert 1.0 <= result.ess <= num_draws

    def test_refusals(self):
        ratios = gaussian_log_ratios(1.2, 100, 0)
        with pytest.raises(ValueError, match=r"`log_ratios` must be a vector of at least 25 draws, got shape \(24,\)"):
            importance(ratios[:24])
        with pytest.raises(ValueError, match=r"`log_ratios` must be a vector .*got shape \(100, 1\)"):
            importance(ratios.unsqueeze(1))
        for bad in (math.nan, math.inf):
            with pytest.raises(
                ValueError, match=r"`log_ratios` must not be NaN or \+inf, got 1 such of 100, the first at 3"
            ):
                importance(ratios.index_fill(0, torch.tensor([3]), bad))
        with pytest.raises(ValueError, match=r"`log_ratios` must be finite somewhere"):
            importance(torch.full((100,), -math.inf))
        with pytest.raises(TypeError, match=r"`log_ratios` must be a floating-point tensor, got torch.int64"):
            importance(torch.arange(100))
        with pytest.raises(TypeError, match=r"`log_ratios` must be a floating-point tensor, got list"):
            importance(ratios.tolist())

    def test_arviz_is_imported_only_when_used(self):
        """Its import takes seconds: no module of the package may do it at its top level."""
        for path in Path(diagnostics.__file__).parent.rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                assert not (isinstance(node, ast.Import | ast.ImportFrom) and "arviz" in ast.unparse(node)), path


@pytest.fixture(scope="module")
def regression():
    """Bayesian linear regression: the target, its exact posterior and its log evidence."""
    inputs, noise_std, precision, prior_mean = normal(40, 3, 0), 0.5, 2.0, 0.3
    design = torch.cat([inputs, torch.ones(40, 1, dtype=torch.float64)], 1)
    targets = design @ torch.tensor([1.0, -0.5, 0.2, 0.7], dtype=torch.float64) + noise_std * normal(40, 1, 1)[:, 0]
    target = Target.last_layer(
        inputs, targets, prior_precision=precision, prior_mean=prior_mean, likelihood=GaussianNoise(noise_std)
    )
    eye = torch.eye(4, dtype=torch.float64)
    posterior_precision = design.T @ design / noise_std**2 + precision * eye
    mean = torch.linalg.solve(posterior_precision, design.T @ targets / noise_std**2 + precision * prior_mean)
    posterior = Gaussian(mean, Dense.from_precision(posterior_precision))
    marginal = torch.distributions.MultivariateNormal(
        prior_mean * design.sum(1), noise_std**2 * torch.eye(40, dtype=torch.float64) + design @ design.T / precision
    )
    return target, posterior, float(marginal.log_prob(targets))


class TestElbo:
    def test_exact_posterior_gives_the_evidence(self, regression):
        target, posterior, log_evidence = regression
        result = elbo(target, posterior, generator=make_generator(0))
        assert result.value == pytest.approx(log_evidence, abs=1e-9)
        assert result.standard_error == pytest.approx(0.0, abs=1e-10)

    def test_exact_posterior_has_equal_weights(self, regression):
        target, posterior, log_evidence = regression
        theta, log_q = posterior.sample_and_log_prob(200, generator=make_generator(0))
        result = importance(target.log_prob(theta) - log_q)
        assert result.khat == -math.inf
        assert result.ess == pytest.approx(200)
        assert result.log_evidence == pytest.approx(log_evidence, abs=1e-9)

    @pytest.mark.parametrize("num_samples", [130, 2000])
    def test_divergence_of_a_wrong_gaussian(self, regression, num_samples):
        """The evidence less the ELBO is KL(q || p), known for Gaussians."""
        target, posterior, log_evidence = regression
        wrong = Gaussian(posterior.mean + 0.02, Diagonal(1.3 * posterior.scale.variance().sqrt()))
        result = elbo(target, wrong, num_samples=num_samples, generator=make_generator(1))
        divergence = torch.distributions.kl_divergence(
            torch.distributions.MultivariateNormal(wrong.mean, wrong.scale.covariance()),
            torch.distributions.MultivariateNormal(posterior.mean, posterior.scale.covariance()),
        )
        assert result.standard_error > 0.0
        assert abs(result.value - (log_evidence - float(divergence))) < 4 * result.standard_error

    def test_standard_error_is_the_spread_of_estimates(self, regression):
        target, posterior, _ = regression
        wide = Gaussian(posterior.mean, Diagonal(1.5 * posterior.scale.variance().sqrt()))
        results = [elbo(target, wide, num_samples=70, generator=make_generator(seed)) for seed in range(100)]
        spread = float(torch.tensor([result.value for result in results]).std())
        claimed = float(torch.tensor([result.standard_error for result in results]).mean())
        assert spread == pytest.approx(claimed, rel=0.3)  # four standard errors of a spread over 100 repeats

    def test_any_density(self, regression):
        target, posterior, log_evidence = regression
        flow = FlowPosterior.whitened(posterior, [])
        assert elbo(target, flow, num_samples=10, generator=make_generator(0)).value == pytest.approx(log_evidence, abs=1e-9)

    def test_same_generator_same_bits(self, regression):
        target, posterior, _ = regression
        wide = Gaussian(posterior.mean, Diagonal(posterior.scale.variance().sqrt()))
        first, second = (elbo(target, wide, num_samples=100, generator=make_generator(3)) for _ in range(2))
        assert isinstance(first, Elbo)
        assert first == second

    def test_refusals(self, regression):
        target, posterior, _ = regression
        with pytest.raises(TypeError, match=r"`posterior` must have a density .*got SamplePosterior.*`mmd`"):
            elbo(target, SamplePosterior(normal(10, 4, 0)), generator=make_generator(0))
        with pytest.raises(ValueError, match=r"`num_samples` must be at least 2, got 1"):
            elbo(target, posterior, num_samples=1, generator=make_generator(0))
        with pytest.raises(TypeError, match=r"`generator` must be a torch.Generator, got NoneType"):
            elbo(target, posterior, generator=None)


# --- ranges of re-splits


def chain_draws(chains=12, count=5, dim=2, seed=0, between=0.0):
    """Standard normal draws by chain, with a shift of its own for each chain."""
    generator = make_generator(seed)
    noise = torch.randn(chains, count, dim, generator=generator, dtype=torch.float64)
    return noise + between * torch.randn(chains, 1, dim, generator=generator, dtype=torch.float64)


def test_the_range_of_resplits_is_that_of_mmd_over_all_halves():
    """Of four chains there are three ways to make two halves, so their quantiles are known."""
    draws = chain_draws(4, 6)
    halves = [([0, 1], [2, 3]), ([0, 2], [1, 3]), ([0, 3], [1, 2])]
    values = [mmd(draws[a].flatten(0, 1), draws[b].flatten(0, 1), bandwidth=1.5) for a, b in halves]
    low, high = diagnostics.resplit_range(draws, bandwidth=1.5, num_splits=500, level=0.99, generator=make_generator(0))
    assert low == pytest.approx(min(values))
    assert high == pytest.approx(max(values))


def test_the_range_of_resplits_holds_the_mmd_of_one_distribution_and_not_that_of_two():
    draws = chain_draws(40, 10)
    low, high = diagnostics.resplit_range(draws, bandwidth=1.5, generator=make_generator(1))
    assert low < 0.0 < high
    reference = draws[:20].flatten(0, 1)
    others = [chain_draws(20, 10, seed=seed).flatten(0, 1) for seed in range(100, 200)]
    inside = [low <= mmd(other, reference, bandwidth=1.5) <= high for other in others]
    assert sum(inside) >= 90  # 99 on average, fewer where the reference itself is an unusual one
    assert all(mmd(other + 0.7, reference, bandwidth=1.5) > high for other in others)


def test_chains_that_differ_widen_the_range_of_resplits():
    ranges = [
        diagnostics.resplit_range(chain_draws(between=between), bandwidth=1.5, generator=make_generator(0))
        for between in (0.0, 1.0)
    ]
    assert ranges[1][1] - ranges[1][0] > 2 * (ranges[0][1] - ranges[0][0])


def test_the_range_of_resplits_narrows_with_its_level_and_comes_with_a_bandwidth_of_its_own():
    draws = chain_draws()
    ranges = [diagnostics.resplit_range(draws, level=level, generator=make_generator(0)) for level in (0.5, 0.99)]
    assert ranges[1][0] < ranges[0][0] < ranges[0][1] < ranges[1][1]
    given = diagnostics.resplit_range(
        draws, bandwidth=median_bandwidth(draws.flatten(0, 1)), level=0.5, generator=make_generator(0)
    )
    assert given == ranges[0]


def test_the_range_of_resplits_is_the_same_in_blocks(monkeypatch):
    draws = chain_draws(8, 7)
    whole = diagnostics.resplit_range(draws, bandwidth=1.0, generator=make_generator(0))
    monkeypatch.setattr(diagnostics, "_CHUNK_ENTRIES", 1)
    assert diagnostics.resplit_range(draws, bandwidth=1.0, generator=make_generator(0)) == pytest.approx(whole)


@pytest.mark.parametrize("shape", [(3, 5, 2), (5, 5, 2), (2, 5, 2), (8, 0, 2), (8, 5)])
def test_resplits_need_an_even_number_of_chains(shape, generator):
    with pytest.raises(ValueError, match=r"`draws` must be floating-point of shape \(chains, n, d\), with an even"):
        diagnostics.resplit_range(torch.zeros(shape), bandwidth=1.0, generator=generator)


def test_what_resplits_cannot_use_is_refused(generator):
    draws = chain_draws()
    with pytest.raises(TypeError, match=r"`draws` must be a torch\.Tensor"):
        diagnostics.resplit_range(draws.numpy(), generator=generator)
    with pytest.raises(ValueError, match="`level` must lie between 0 and 1, got 1"):
        diagnostics.resplit_range(draws, level=1.0, generator=generator)
    with pytest.raises(ValueError, match="`bandwidth` must be positive"):
        diagnostics.resplit_range(draws, bandwidth=-1.0, generator=generator)
    with pytest.raises(ValueError, match="`num_splits` must be at least 1"):
        diagnostics.resplit_range(draws, num_splits=0, generator=generator)
    with pytest.raises(ValueError, match="`draws` must be finite"):
        diagnostics.resplit_range(draws.log(), generator=generator)
