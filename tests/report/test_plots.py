"""Figures: valid, complete, the same bytes each time, and drawn from whatever a study may give them."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch

from burnish.noise import make_generator
from burnish.report import plots

NAMES = ("the network", "temperature scaling", "burnish")
COLOURS = {name: plots.method_colour(name, NAMES) for name in NAMES}


def random_probs(num_points=80, num_classes=4, seed=0, scale=3.0):
    return (scale * torch.randn(num_points, num_classes, generator=make_generator(seed))).softmax(-1)


def random_targets(num_points=80, num_classes=4):
    return torch.randint(num_classes, (num_points,), generator=make_generator(9))


def random_draws(num_draws=50, dim=9, seed=0):
    return torch.randn(num_draws, dim, generator=make_generator(seed))


def reliability(probs, targets, **options):
    return plots.reliability_diagram(probs, targets, colours=COLOURS, **options)


def num_panels(svg):
    """Groups of axes; also checks that the text is one well-formed element that can stand in a page."""
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    assert {"width", "height"}.isdisjoint(root.attrib)
    assert "viewBox" in root.attrib
    assert not re.search(r"\bnan\b|\binf\b", svg, re.IGNORECASE)
    ids = [node.attrib["id"] for node in root.iter() if "id" in node.attrib]
    assert len(ids) == len(set(ids))
    for used in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg):
        assert "".join(used) in ids
    return sum(bool(re.search(r"-axes_\d+$", name)) for name in ids)


def confidences(num_sets):
    return {f"set {i}": {name: random_probs(seed=i).max(1).values for name in NAMES} for i in range(num_sets)}


FIGURES = {
    "reliability": (2, lambda: reliability({name: random_probs(seed=i) for i, name in enumerate(NAMES)}, random_targets())),
    "elbo": (
        1,
        lambda: plots.elbo_curves(
            {"burnish": torch.linspace(-50.0, -5.0, 40)},
            {"the network": -1e5, "burnish": -4.5},
            log_evidence=-4.0,
            colours=COLOURS,
        ),
    ),
    "marginals": (
        3,
        lambda: plots.marginals(
            {name: random_draws(seed=i) for i, name in enumerate(NAMES)},
            {"a": 0, "b": 5, "c": 8},
            colours=COLOURS,
            reference=torch.zeros(9),
        ),
    ),
    "confidence": (4, lambda: plots.confidence_histograms(confidences(4), colours=COLOURS)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_its_panels_and_the_same_bytes_twice(name, untouched_rng):
    panels, draw = FIGURES[name]
    svg = draw()
    assert num_panels(svg) == panels
    assert "<text" not in svg  # letters are paths: no font is needed
    assert svg == draw()


def test_figures_leave_the_settings_of_matplotlib_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    FIGURES["reliability"][1]()
    assert dict(matplotlib.rcParams) == before


def test_ids_of_different_figures_differ():
    found = [set(re.findall(r'id="([^"]+)"', draw())) for _, draw in FIGURES.values()]
    assert sum(map(len, found)) == len(set().union(*found))


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a $ b $ c", 'quote " & --> end', "ünïcode"])
def test_any_name_can_be_drawn_and_none_gets_into_the_markup(name):
    svg = plots.reliability_diagram({name: random_probs()}, random_targets(), colours={name: "#000000"})
    assert num_panels(svg) == 2
    assert "script" not in svg


def test_reliability_of_one_class_of_equal_confidences_and_of_one_point():
    certain = torch.tensor([[1.0, 0.0]]).expand(30, 2)
    assert num_panels(reliability({"burnish": certain}, torch.zeros(30, dtype=torch.int64))) == 2
    even = torch.full((30, 4), 0.25)
    assert num_panels(reliability({"burnish": even}, torch.ones(30, dtype=torch.int64))) == 2
    assert num_panels(reliability({"burnish": random_probs(1)}, random_targets(1))) == 2


def test_bins_are_merged_until_each_holds_enough_and_no_point_is_lost():
    probs, targets = random_probs(500), random_targets(500)
    confidence, accuracy, counts, spread = plots._bins(probs, targets, 10, 40)
    assert int(counts.sum()) == int(spread.sum()) == 500
    assert float(counts.min()) >= 40
    assert torch.equal(confidence, confidence.sort().values)
    hits = (probs.argmax(1) == targets).double()
    assert float((accuracy * counts).sum()) == pytest.approx(float(hits.sum()))


def test_elbo_of_one_step_of_equal_values_and_of_none():
    for trace in (torch.tensor([-3.0]), torch.full((5,), -3.0), torch.tensor([-3.0, 9.0])):
        svg = plots.elbo_curves({"burnish": trace}, {"burnish": -3.5}, log_evidence=-3.0, colours=COLOURS)
        assert num_panels(svg) == 1
    assert num_panels(plots.elbo_curves({}, {"burnish": -5.0}, log_evidence=-3.0, colours=COLOURS)) == 1


def test_the_running_mean_of_a_line_is_a_line():
    smooth = plots._running_mean(torch.arange(100.0))
    assert len(smooth) == 81
    assert torch.allclose(smooth.diff(), torch.ones(80))


def test_marginals_of_one_draw_of_equal_draws_and_of_an_odd_number():
    draws = {"the network": random_draws(1), "burnish": torch.ones(20, 9)}
    assert num_panels(plots.marginals(draws, {"weight": 3}, colours=COLOURS)) == 1
    assert num_panels(plots.marginals(draws, {str(i): i for i in range(5)}, colours=COLOURS)) == 5


def test_the_most_different_weights_are_found():
    draws = {name: random_draws(200, seed=i) for i, name in enumerate(NAMES)}
    draws["burnish"][:, 4] += 3.0
    draws["burnish"][:, 7] += 1.5
    assert plots.most_different(draws, 2) == [4, 7]
    assert sorted(plots.most_different(draws, 100)) == list(range(9))
    assert plots.most_different({"burnish": draws["burnish"]}, 1) == [0]


def test_the_distance_of_marginals_is_that_of_scipy():
    from scipy.stats import ks_2samp

    left, right = random_draws(40, 3), random_draws(70, 3, seed=1)
    found = plots._kolmogorov_smirnov(left, right)
    for column in range(3):
        expected = ks_2samp(left[:, column].numpy(), right[:, column].numpy()).statistic
        assert float(found[column]) == pytest.approx(expected)


def test_confidence_of_one_image_and_of_equal_values():
    values = {"set": {"the network": torch.tensor([1.0]), "burnish": torch.full((9,), 0.1)}}
    assert num_panels(plots.confidence_histograms(values, colours=COLOURS)) == 1


def test_every_method_has_a_colour_of_its_own():
    names = tuple(f"method {i}" for i in range(7))
    assert len({plots.method_colour(name, names) for name in names}) == 7
