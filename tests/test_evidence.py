"""Evidence against closed forms, a grid and annealed importance sampling, and what comparisons make of it."""

import math
import sys
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from burnish.diagnostics import elbo, importance, log_ratios
from burnish.errors import FitError
from burnish.evidence import Evidence, EvidenceBound, compare_evidence, estimate_evidence
from burnish.inference.flow import fit_flow
from burnish.inference.laplace import fit_laplace
from burnish.likelihoods import GaussianNoise
from burnish.linear_bijections import DiagonalScale, Shift
from burnish.noise import make_generator
from burnish.posteriors import Gaussian, SamplePosterior
from burnish.target import Target

sys.path.append(str(Path(__file__).parent / "inference"))
from problems import binary, classification, features, regression, regression_truth


def wrong(posterior, factor, offset=0.0):
    """The Gaussian stretched in all directions, and shifted by so many of its standard deviations."""
    scale = posterior.scale.stretched(torch.full_like(posterior.mean, factor))
    return Gaussian(posterior.mean + offset * posterior.scale.variance().sqrt(), scale)


def stretch_divergence(dim, factor):
    """KL(q || p) where q is p stretched."""
    return dim * (0.5 * (factor**2 - 1.0) - math.log(factor))


def skewed():
    """Few points and a weak prior in two dimensions: far from Gaussian."""
    return binary(num_points=12, num_features=2, prior_precision=0.05, bias=False)


def grid_evidence(target, reach=60.0, num_points=601):
    """The integral of the posterior on a square that holds all of it."""
    side = torch.linspace(-reach, reach, num_points, dtype=torch.float64)
    return float(target.log_prob(torch.cartesian_prod(side, side)).logsumexp(0)) + 2 * math.log(float(side[1] - side[0]))


def annealed_evidence(target, *, num_chains=4000, num_steps=600, generator):
    """Annealed importance sampling from prior to posterior along the geometric path, and its standard error.

    Random-walk Metropolis moves, with steps of all sizes up to the prior's: nothing is known of the posterior beforehand.
    """
    theta = target.prior.sample(num_chains, generator=generator)
    prior, joint = target.log_prior(theta), target.log_prob(theta)
    log_weights = torch.zeros(num_chains, dtype=torch.float64)
    powers = torch.linspace(0.0, 1.0, num_steps + 1, dtype=torch.float64) ** 3
    for before, after in pairwise(powers):
        log_weights += (after - before) * (joint - prior)
        noise = torch.randn(theta.shape, generator=generator, dtype=torch.float64)
        size = 10 ** (-1.5 * torch.rand(num_chains, 1, generator=generator, dtype=torch.float64))
        proposal = theta + size * target.prior_precision**-0.5 * noise
        new_prior, new_joint = target.log_prior(proposal), target.log_prob(proposal)
        gain = (1 - after) * (new_prior - prior) + after * (new_joint - joint)
        accepted = torch.rand(num_chains, generator=generator, dtype=torch.float64).log() < gain
        theta = torch.where(accepted.unsqueeze(1), proposal, theta)
        prior, joint = torch.where(accepted, new_prior, prior), torch.where(accepted, new_joint, joint)
    weights = (log_weights - log_weights.max()).exp()
    error = float(weights.std() / weights.mean()) / math.sqrt(num_chains)
    return float(log_weights.logsumexp(0)) - math.log(num_chains), error


@pytest.fixture(scope="module")
def conjugate():
    """A target with its exact posterior and evidence."""
    target = regression()
    return target, fit_laplace(target).posterior, regression_truth(target)[2]


@pytest.fixture(scope="module")
def logistic():
    """A skewed target, its refined posterior, and the evidence on a grid."""
    target = skewed()
    fit = fit_flow(target, fit_laplace(target).posterior, generator=make_generator(0))
    return target, fit.posterior, grid_evidence(target)


class TestConjugate:
    def test_exact_posterior_gives_the_evidence(self, conjugate):
        target, posterior, truth = conjugate
        result = estimate_evidence(target, posterior, generator=make_generator(0))
        assert result.elbo == pytest.approx(truth, abs=1e-9)
        assert result.log_evidence == pytest.approx(truth, abs=1e-9)
        assert result.elbo_standard_error == pytest.approx(0.0, abs=1e-10)
        assert result.standard_error == pytest.approx(0.0, abs=1e-10)
        assert [bound.value for bound in result.bounds] == pytest.approx([truth] * 4, abs=1e-9)
        assert result.ess == pytest.approx(1000)
        assert result.khat == -math.inf
        assert result.reliable
        assert (result.num_samples, result.num_points) == (1000, 30)

    def test_refining_the_exact_posterior_keeps_the_evidence(self, conjugate):
        target, posterior, truth = conjugate
        fit = fit_flow(target, posterior, generator=make_generator(0))
        result = estimate_evidence(target, fit.posterior, generator=make_generator(1))
        assert result.log_evidence == pytest.approx(truth, abs=1e-3)
        assert result.elbo == pytest.approx(truth, abs=1e-3)

    def test_a_wrong_base_refined_gives_the_evidence(self, conjugate):
        """Scale and shift can undo the error, so that the refined posterior is exact."""
        target, posterior, truth = conjugate
        base = wrong(posterior, 1.5, offset=2.0)
        before = estimate_evidence(target, base, generator=make_generator(1))
        layers = [DiagonalScale.identity(base.mean), Shift.identity(base.mean)]
        fit = fit_flow(target, base, bijections=layers, generator=make_generator(0))
        after = estimate_evidence(target, fit.posterior, generator=make_generator(1))
        assert before.elbo < truth - 5.0
        assert after.log_evidence == pytest.approx(truth, abs=1e-3)
        assert after.elbo == pytest.approx(truth, abs=1e-3)
        assert after.standard_error < 1e-3

    def test_what_the_flow_cannot_undo_the_weights_do(self, conjugate):
        """The default layers leave a gap here: the ELBO shows it, and the log evidence is right within its error."""
        target, posterior, truth = conjugate
        fit = fit_flow(target, wrong(posterior, 1.3, offset=0.5), generator=make_generator(0))
        result = estimate_evidence(target, fit.posterior, num_samples=4000, generator=make_generator(1))
        assert result.reliable
        assert result.elbo < truth - 3 * result.elbo_standard_error
        assert abs(result.log_evidence - truth) < 3 * result.standard_error < 0.02

    def test_the_elbo_lies_below_by_the_divergence(self, conjugate):
        target, posterior, truth = conjugate
        result = estimate_evidence(target, wrong(posterior, 1.3), num_samples=2000, generator=make_generator(1))
        gap = stretch_divergence(target.dim, 1.3)
        assert abs(result.elbo - (truth - gap)) < 3 * result.elbo_standard_error < 0.3 * gap
        assert abs(result.log_evidence - truth) < 3 * result.standard_error < 0.3 * gap

    def test_standard_errors_in_closed_form(self, conjugate):
        """With q stretched by f, log w is a multiple of chi-square, and E w^2 / (E w)^2 = (f^2 / sqrt(2 f^2 - 1))^d."""
        target, posterior, _ = conjugate
        factor, num_samples = 1.3, 20_000
        result = estimate_evidence(target, wrong(posterior, factor), num_samples=num_samples, generator=make_generator(1))
        spread = math.sqrt((factor**2 / math.sqrt(2 * factor**2 - 1)) ** target.dim - 1)
        assert result.standard_error == pytest.approx(spread / math.sqrt(num_samples), rel=0.05)
        elbo_spread = 0.5 * (factor**2 - 1) * math.sqrt(2 * target.dim)
        assert result.elbo_standard_error == pytest.approx(elbo_spread / math.sqrt(num_samples), rel=0.05)

    def test_standard_errors_are_the_spread_of_estimates(self, conjugate):
        """Also that neither estimate lies above the evidence on average."""
        target, posterior, truth = conjugate
        wide, generator = wrong(posterior, 1.2), make_generator(2)
        results = [estimate_evidence(target, wide, num_samples=200, generator=generator) for _ in range(100)]
        for value, error in (("elbo", "elbo_standard_error"), ("log_evidence", "standard_error")):
            values = torch.tensor([getattr(result, value) for result in results], dtype=torch.float64)
            claimed = sum(getattr(result, error) for result in results) / 100
            assert float(values.std()) == pytest.approx(claimed, rel=0.3)  # four standard errors of a spread
            assert float(values.mean()) < truth + 3 * float(values.std()) / 10

    def test_a_posterior_much_too_narrow_is_not_reliable(self, conjugate):
        target, posterior, _ = conjugate
        for seed in range(5):
            result = estimate_evidence(target, wrong(posterior, 0.3), generator=make_generator(seed))
            assert result.khat > 0.7
            assert not result.reliable


class TestBounds:
    def test_groups_by_hand(self, conjugate):
        """Groups in the order of draws; what does not fill a group is left out."""
        target, posterior, _ = conjugate
        wide = wrong(posterior, 1.5)
        result = estimate_evidence(target, wide, num_samples=234, generator=make_generator(3))
        ratios = log_ratios(target, wide, 234, generator=make_generator(3)).tolist()
        assert [bound.num_draws for bound in result.bounds] == [1, 10, 100]
        for bound in result.bounds:
            size, count = bound.num_draws, 234 // bound.num_draws
            groups = [ratios[i * size : (i + 1) * size] for i in range(count)]
            values = [math.log(sum(map(math.exp, group)) / size) for group in groups]
            mean = sum(values) / count
            error = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count)
            assert (bound.value, bound.standard_error) == (pytest.approx(mean), pytest.approx(error))

    @pytest.mark.parametrize(("num_samples", "sizes"), [(25, [1, 10]), (99, [1, 10]), (100, [1, 10, 100])])
    def test_sizes_up_to_the_number_of_draws(self, conjugate, num_samples, sizes):
        target, posterior, _ = conjugate
        result = estimate_evidence(target, posterior, num_samples=num_samples, generator=make_generator(0))
        assert [bound.num_draws for bound in result.bounds] == sizes

    def test_from_the_elbo_to_the_log_evidence(self, conjugate):
        target, posterior, _ = conjugate
        result = estimate_evidence(target, wrong(posterior, 1.5), num_samples=1000, generator=make_generator(0))
        assert result.bounds[0] == EvidenceBound(1, result.elbo, result.elbo_standard_error)
        assert result.bounds[-1] == EvidenceBound(1000, pytest.approx(result.log_evidence, abs=1e-12), None)

    def test_they_rise_and_stay_below_the_evidence(self, conjugate):
        """In every run, as groups are nested; on average by more than the error, and never beyond the evidence."""
        target, posterior, truth = conjugate
        wide, generator = wrong(posterior, 1.4), make_generator(4)
        results = [estimate_evidence(target, wide, num_samples=100, generator=generator) for _ in range(50)]
        values = torch.tensor([[bound.value for bound in result.bounds] for result in results], dtype=torch.float64)
        assert bool((values.diff(dim=1) > 0).all())
        errors = values.std(0) / math.sqrt(50)
        assert bool((values.mean(0) < truth + 3 * errors).all())
        assert bool((values.mean(0)[:2] < truth - 3 * errors[:2]).all())  # where draws are few, the gap is there to see


class TestLogistic:
    def test_against_a_grid_and_annealing(self, logistic):
        target, posterior, grid = logistic
        result = estimate_evidence(target, posterior, generator=make_generator(2))
        annealed, annealed_error = annealed_evidence(target, generator=make_generator(3))
        assert grid == pytest.approx(grid_evidence(target, reach=80.0, num_points=1201), abs=1e-6)
        assert result.reliable
        assert abs(result.log_evidence - grid) < 3 * result.standard_error < 0.02
        assert abs(annealed - grid) < 3 * annealed_error < 0.05
        assert abs(result.log_evidence - annealed) < 3 * math.hypot(result.standard_error, annealed_error)

    def test_refinement_beats_the_evidence_of_the_laplace_approximation(self, logistic):
        target, posterior, grid = logistic
        result = estimate_evidence(target, posterior, generator=make_generator(2))
        laplace = fit_laplace(target)
        assert abs(result.log_evidence - grid) < 0.1 * abs(laplace.log_evidence - grid)
        assert result.elbo > estimate_evidence(target, laplace.posterior, generator=make_generator(2)).elbo + 0.2

    def test_priors(self, logistic):
        """Priors ordered as on the grid, with its Bayes factors."""
        weak = logistic[0]
        targets, generator = {"0.05": weak, "0.5": weak.with_prior(0.5), "5": weak.with_prior(5.0)}, make_generator(4)
        posteriors = {name: fit_flow(t, fit_laplace(t).posterior, generator=generator) for name, t in targets.items()}
        comparison = compare_evidence(
            {name: estimate_evidence(t, posteriors[name].posterior, generator=generator) for name, t in targets.items()}
        )
        exact = {name: grid_evidence(target) for name, target in targets.items()}
        order = sorted(exact, key=exact.get, reverse=True)
        assert comparison.criterion == "log_evidence"
        assert [candidate.name for candidate in comparison.candidates] == order
        assert comparison.decided
        for candidate in comparison.candidates[1:]:
            difference = exact[candidate.name] - exact[order[0]]
            assert abs(candidate.log_bayes_factor - difference) < 3 * candidate.log_bayes_factor_standard_error


@pytest.fixture(scope="module")
def architectures():
    """The same data with those features that made them, with all, and with the others."""
    inputs = features(40, 4)
    noise = 0.5 * torch.randn(40, generator=make_generator(1), dtype=torch.float64)
    outputs = inputs[:, :2] @ torch.tensor([0.8, -0.6], dtype=torch.float64) + noise
    columns = {"others": [2, 3], "all": [0, 1, 2, 3], "true": [0, 1]}
    return {
        name: Target.last_layer(inputs[:, index], outputs, prior_precision=1.0, likelihood=GaussianNoise(0.5))
        for name, index in columns.items()
    }


class TestComparison:
    def test_architectures(self, architectures):
        """The true one wins by the margins of the closed form, with posteriors refined from wrong ones."""
        evidences, generator = {}, make_generator(0)
        to_the_end = {"stop_early": False, "max_steps": 400}  # a plateau may come a few thousandths of a nat too early
        for name, target in architectures.items():
            base = wrong(fit_laplace(target).posterior, 1.3, offset=1.0)
            layers = [DiagonalScale.identity(base.mean), Shift.identity(base.mean)]
            fit = fit_flow(target, base, bijections=layers, generator=generator, **to_the_end)
            evidences[name] = estimate_evidence(target, fit.posterior, generator=generator)
        comparison = compare_evidence(evidences)
        exact = {name: regression_truth(target)[2] for name, target in architectures.items()}
        assert [candidate.name for candidate in comparison.candidates] == ["true", "all", "others"]
        assert (comparison.best, comparison.criterion, comparison.unreliable) == ("true", "log_evidence", ())
        assert comparison.decided
        for candidate in comparison.candidates:
            margin = exact[candidate.name] - exact["true"]
            assert candidate.log_bayes_factor == pytest.approx(margin, abs=1e-3)
            assert candidate.elbo_difference == pytest.approx(margin, abs=1e-3)
            assert candidate.behind == (candidate.name != "true")
            assert candidate.evidence is evidences[candidate.name]

    def test_elbos_where_weights_cannot_be_trusted(self, architectures):
        """The true model with a posterior much too narrow: it loses by its gap, and the comparison says so."""
        generator = make_generator(1)
        posteriors = {name: fit_laplace(target).posterior for name, target in architectures.items()}
        posteriors["true"] = wrong(posteriors["true"], 0.01)
        comparison = compare_evidence(
            {name: estimate_evidence(t, posteriors[name], generator=generator) for name, t in architectures.items()}
        )
        assert comparison.criterion == "elbo"
        assert comparison.unreliable == ("true",)
        assert comparison.best == "all"
        candidate = next(candidate for candidate in comparison.candidates if candidate.name == "true")
        margin = regression_truth(architectures["true"])[2] - regression_truth(architectures["all"])[2]
        expected = margin - stretch_divergence(3, 0.01)
        assert abs(candidate.elbo_difference - expected) < 3 * candidate.elbo_difference_standard_error
        assert candidate.behind
        assert "by ELBO, as k-hat is not below 0.7 for true: differences include" in str(comparison)

    @pytest.mark.parametrize(("difference", "behind"), [(0.0, False), (1.49, False), (1.51, True)])
    def test_three_combined_standard_errors(self, difference, behind):
        """0.3 and 0.4 make 0.5."""
        first, second = made(-10.0, 0.3), made(-10.0 - difference, 0.4)
        comparison = compare_evidence({"second": second, "first": first})
        last = comparison.candidates[-1]
        assert last.log_bayes_factor == pytest.approx(-difference)
        assert last.log_bayes_factor_standard_error == pytest.approx(0.5)
        assert last.elbo_difference_standard_error == pytest.approx(math.hypot(0.6, 0.8))
        assert last.behind == comparison.decided == behind
        assert not comparison.candidates[0].behind
        assert comparison.candidates[0].log_bayes_factor_standard_error == 0.0

    def test_each_criterion_has_its_own_order_and_errors(self):
        """Ahead by log evidence, behind by ELBO."""
        first, second = made(-10.0, 0.01, elbo=-13.0), made(-11.0, 0.01, elbo=-12.0)
        assert compare_evidence({"first": first, "second": second}).best == "first"
        fallen = compare_evidence({"first": replace(first, khat=0.7), "second": second})
        assert (fallen.best, fallen.criterion, fallen.unreliable) == ("second", "elbo", ("first",))
        assert fallen.candidates[1].log_bayes_factor == pytest.approx(1.0)
        assert fallen.candidates[1].elbo_difference == pytest.approx(-1.0)
        assert fallen.candidates[1].behind

    def test_rounding_decides_nothing(self):
        comparison = compare_evidence({"a": made(-10.0, 0.0), "b": made(-10.0 - 1e-9, 0.0)})
        assert not comparison.decided

    def test_table(self):
        evidences = {"wide": made(-12.0, 0.3), "deep": made(-10.0, 0.4), "flat": made(-10.00001, 0.3)}
        comparison = compare_evidence(evidences)
        assert not comparison.decided
        assert str(comparison).splitlines() == [
            "candidate  log Bayes factor  ELBO difference  k-hat  standing",
            "deep       0.000 ± 0.000     0.000 ± 0.000    0.10   best",
            "flat       0.000 ± 0.500     0.000 ± 1.000    0.10   not clearly behind",
            "wide       -2.000 ± 0.500    -2.000 ± 1.000   0.10   clearly behind",
            "by log evidence: every k-hat is good.",
        ]


def made(log_evidence, standard_error, *, elbo=None, khat=0.1):
    """An Evidence by hand; the ELBO a nat below, its error twice as large."""
    bound = log_evidence - 1.0 if elbo is None else elbo
    return Evidence(bound, 2 * standard_error, log_evidence, standard_error, 900.0, khat, (), 1000, 60, 0.1)


class TestContracts:
    def test_same_generator_same_bits(self, logistic, untouched_rng):
        target, posterior, _ = logistic
        first, second = (estimate_evidence(target, posterior, generator=make_generator(5)) for _ in range(2))
        assert replace(first, seconds=0.0) == replace(second, seconds=0.0)
        assert first.seconds > 0.0
        with pytest.raises(FrozenInstanceError):
            first.elbo = 0.0

    def test_the_numbers_are_those_of_the_diagnostics(self, logistic):
        target, posterior, _ = logistic
        result = estimate_evidence(target, posterior, num_samples=300, generator=make_generator(5))
        bound = elbo(target, posterior, num_samples=300, generator=make_generator(5))
        weights = importance(log_ratios(target, posterior, 300, generator=make_generator(5)))
        assert (result.elbo, result.elbo_standard_error) == (pytest.approx(bound.value), pytest.approx(bound.standard_error))
        assert (result.khat, result.ess, result.log_evidence) == (weights.khat, weights.ess, weights.log_evidence)

    def test_draws_come_in_chunks(self, conjugate):
        target, posterior, _ = conjugate
        sizes = []

        class Counted(Gaussian):
            def sample_and_log_prob(self, num_samples, *, generator):
                sizes.append(num_samples)
                return super().sample_and_log_prob(num_samples, generator=generator)

        estimate_evidence(target, Counted(posterior.mean, posterior.scale), num_samples=3000, generator=make_generator(0))
        assert sum(sizes) == 3000
        assert max(sizes) <= 100

    def test_single_precision(self):
        """As in double precision, but for rounding."""
        results = []
        for dtype in (torch.float32, torch.float64):
            target = classification(dtype=dtype)
            results.append(estimate_evidence(target, fit_laplace(target).posterior, generator=make_generator(0)))
        error = math.hypot(*(result.standard_error for result in results))
        assert results[0].log_evidence == pytest.approx(results[1].log_evidence, abs=4 * error)


class Untouchable(Gaussian):
    """Errors come before work: drawing from it would be work."""

    def sample_and_log_prob(self, num_samples, *, generator):
        raise AssertionError


class TestRefusals:
    @pytest.fixture
    def case(self, conjugate):
        target, posterior, _ = conjugate
        return target, Untouchable(posterior.mean, posterior.scale)

    def test_posteriors_without_density(self, conjugate):
        target, posterior, _ = conjugate
        samples = SamplePosterior(posterior.sample(50, generator=make_generator(0)))
        for bad in (samples, fit_laplace(target)):
            kind = type(bad).__name__
            with pytest.raises(
                TypeError, match=rf"`posterior` must have a density, got {kind}\. Pass a Gaussian or a FlowP"
            ):
                estimate_evidence(target, bad, generator=make_generator(0))

    def test_something_else_than_a_target(self, case):
        with pytest.raises(TypeError, match="`target` must be a Target, got Model"):
            estimate_evidence(case[0].model, case[1], generator=make_generator(0))

    def test_too_few_draws(self, case):
        with pytest.raises(ValueError, match=r"`num_samples` must be at least 25, got 24\. The tail of the weights needs"):
            estimate_evidence(*case, num_samples=24, generator=make_generator(0))
        with pytest.raises(TypeError, match="`num_samples` must be an integer, got float"):
            estimate_evidence(*case, num_samples=1e3, generator=make_generator(0))

    def test_generators(self, case, monkeypatch):
        with pytest.raises(TypeError, match=r"`generator` must be a torch\.Generator, got int"):
            estimate_evidence(*case, generator=0)
        monkeypatch.setattr("burnish.noise.torch.Generator", SimpleNamespace)
        with pytest.raises(ValueError, match="`generator` must live on cpu, where the tensors are, got one on cuda:0"):
            estimate_evidence(*case, generator=SimpleNamespace(device=torch.device("cuda:0")))

    def test_dimensions(self, case):
        other = Untouchable.standard(torch.zeros(3, dtype=torch.float64))
        with pytest.raises(ValueError, match="`posterior` must have the 10 dimensions of the target, got 3"):
            estimate_evidence(case[0], other, generator=make_generator(0))

    def test_another_dtype(self, case):
        other = Gaussian.standard(torch.zeros(case[0].dim))
        with pytest.raises(TypeError, match=r"`posterior` must be torch\.float64 on cpu"):
            estimate_evidence(case[0], other, generator=make_generator(0))

    def test_densities_that_overflow(self, conjugate):
        target, posterior, _ = conjugate
        with pytest.raises(FitError, match="are not finite at 1000 of 1000 draws; use float64, or a posterior that does"):
            estimate_evidence(target, wrong(posterior, 1e200), generator=make_generator(0))

    def test_comparisons(self):
        evidence = made(-10.0, 0.1)
        with pytest.raises(ValueError, match="`evidences` must have at least 2 candidates, got 1"):
            compare_evidence({"one": evidence})
        with pytest.raises(TypeError, match="`evidences` must be a mapping from names, got list"):
            compare_evidence([evidence, evidence])
        with pytest.raises(TypeError, match="`evidences` must hold Evidence, got float for 'two'"):
            compare_evidence({"one": evidence, "two": -10.0})
        with pytest.raises(ValueError, match=r"`evidences` must be of the same data, got .*\{'one': 60, 'two': 61\}"):
            compare_evidence({"one": evidence, "two": replace(evidence, num_points=61)})
