"""The paper's calibration error and MMD: counted by hand, and where they part from the right ones."""

import math

import pytest
import torch

from burnish import metrics
from burnish.diagnostics import mmd
from burnish.noise import make_generator
from burnish.studies.paper_scores import paper_ece, paper_mmd


def two_classes(confidences, dtype=torch.float64):
    """Class 0 is predicted with these confidences."""
    top = torch.tensor(confidences, dtype=dtype)
    return torch.stack([top, 1 - top], dim=1)


def random_probs(count, classes, scale, seed=0):
    generator = make_generator(seed)
    logits = scale * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    return logits.softmax(1), torch.randint(classes, (count,), generator=generator)


def test_ece_by_hand():
    """Bins 60, 61 and 98 hold points; two points above 0.99 do not count, though one of them is wrong."""
    probs = two_classes([0.602, 0.608, 0.615, 0.985, 0.995, 0.999])
    targets = torch.tensor([0, 1, 1, 0, 1, 0])
    gaps = [abs(1 - 0.602 - 0.608), 0.615, 1 - 0.985]
    assert paper_ece(probs, targets) == pytest.approx(sum(gaps) / 4, abs=1e-12)


def test_ece_bins_are_closed_on_the_left():
    """0.75 begins a bin; on the right-closed bins of `metrics.ece` it would end one, and the errors would cancel."""
    probs, targets = two_classes([0.75, 0.745]), torch.tensor([0, 1])
    assert paper_ece(probs, targets) == pytest.approx((0.25 + 0.745) / 2, abs=1e-12)
    assert metrics.ece(probs, targets, num_bins=100) == pytest.approx((0.745 - 0.25) / 2, abs=1e-12)


def test_ece_drops_exactly_what_reaches_the_last_bin():
    below = math.nextafter(0.99, 0.0)
    assert paper_ece(two_classes([0.99, below]), torch.tensor([1, 0])) == pytest.approx(0.01, abs=1e-9)
    assert math.isnan(paper_ece(two_classes([0.99, 1.0]), torch.tensor([1, 0])))


def test_ece_is_the_usual_one_of_the_points_that_are_left():
    probs, targets = random_probs(4000, 5, 3.0)
    left = probs.max(1).values < 0.99
    assert 0 < int(left.sum()) < 3900
    usual = metrics.ece(probs[left], targets[left], num_bins=100)  # no confidence lies on an edge
    assert paper_ece(probs, targets) == pytest.approx(usual, abs=1e-12)


def test_ece_of_a_good_network_comes_out_larger():
    """Half of the points sure and right, the others at chance: dropping the sure ones doubles the error."""
    probs = two_classes([0.999] * 500 + [0.9] * 500)
    targets = torch.tensor([0] * 750 + [1] * 250)
    assert paper_ece(probs, targets) == pytest.approx(0.4, abs=1e-9)
    assert metrics.ece(probs, targets, num_bins=100) == pytest.approx(0.2, abs=1e-3)


def test_ece_does_not_depend_on_order_or_dtype():
    probs, targets = random_probs(500, 10, 2.0)
    order = torch.randperm(500, generator=make_generator(1))
    assert paper_ece(probs[order], targets[order]) == pytest.approx(paper_ece(probs, targets), abs=1e-12)
    assert paper_ece(probs.float(), targets) == pytest.approx(paper_ece(probs, targets), abs=1e-5)


def test_ece_refuses_logits():
    with pytest.raises(ValueError, match="`probs` must not be negative"):
        paper_ece(torch.randn(4, 3, generator=make_generator(0)), torch.tensor([0, 1, 2, 0]))


def plain_mmd(samples, reference):
    """With loops over pairs for the bandwidth, and whole kernel matrices."""
    rows = [*samples[:50], *reference[:50]]
    distances = sorted(float((rows[i] - rows[j]).norm()) for i in range(len(rows)) for j in range(i))
    middle = len(distances) // 2
    bandwidth = distances[middle] if len(distances) % 2 else (distances[middle - 1] + distances[middle]) / 2

    def mean_kernel(x, y):
        return float((-(torch.cdist(x, y) ** 2) / bandwidth**2).exp().mean())

    return mean_kernel(samples, samples) + mean_kernel(reference, reference) - 2 * mean_kernel(samples, reference)


@pytest.mark.parametrize(("count", "shift"), [(120, 0.0), (120, 1.0), (50, 3.0), (9, 0.5)])
def test_mmd_is_that_of_its_definition(count, shift):
    generator = make_generator(0)
    samples, reference = (torch.randn(n, 7, generator=generator, dtype=torch.float64) for n in (count, 120))
    assert paper_mmd(samples + shift, reference) == pytest.approx(plain_mmd(samples + shift, reference), abs=1e-10)


def test_mmd_looks_at_the_first_rows_of_both_for_its_bandwidth():
    generator = make_generator(0)
    samples, reference = (torch.randn(80, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    turned = torch.cat([reference[50:], reference[:50]])
    for one, other in [(samples, turned), (torch.cat([samples[50:], samples[:50]]), reference)]:
        assert paper_mmd(one, other) != pytest.approx(paper_mmd(samples, reference), abs=1e-6)
        same = mmd(one, other, bandwidth=1.0, unbiased=False)
        assert same == pytest.approx(mmd(samples, reference, bandwidth=1.0, unbiased=False), abs=1e-10)


def test_mmd_of_equal_rows_is_zero_and_of_one_point_is_known():
    rows = torch.randn(60, 4, generator=make_generator(0), dtype=torch.float64)
    assert paper_mmd(rows, rows) == pytest.approx(0.0, abs=1e-12)
    # two points at distance 2, two copies each: of six distances, two are 0 and four 2
    pair = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    assert paper_mmd(pair[:1].repeat(2, 1), pair[1:].repeat(2, 1)) == pytest.approx(2 - 2 * math.exp(-1.0))


def test_mmd_refuses_what_cannot_be_compared():
    rows = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="`samples` must have the 2 dimensions of `reference`, got 4"):
        paper_mmd(torch.zeros(3, 4), rows)
    with pytest.raises(ValueError, match="`reference` must have shape"):
        paper_mmd(rows, rows[0])
    with pytest.raises(TypeError, match=r"`samples` must be torch\.float32"):
        paper_mmd(rows.double(), rows)
    with pytest.raises(TypeError, match=r"`samples` must be a torch\.Tensor"):
        paper_mmd([[0.0, 1.0]], rows)
