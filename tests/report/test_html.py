"""The page: complete, escaped, self-contained, honest in its words, and whole in a browser."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from importlib.resources import files

import pytest
import torch

from burnish.batches import Batch
from burnish.diagnostics import Elbo
from burnish.drift import Drift
from burnish.held_out import HeldOut, Score
from burnish.ladder import Rung
from burnish.metrics import Interval
from burnish.noise import make_generator
from burnish.prediction import Prediction
from burnish.report import html
from burnish.studies.digits import AT_NETWORK, BURNISH, NETWORK, PAPER, RECENTRED, TEMPERATURE, DigitsDemo, Row, Settings
from burnish.verdict import Verdict

HOSTILE = "<script>alert('x')</script>"
VOID = {"meta", "link", "img", "br", "hr", "input"}
NAMES = (NETWORK, TEMPERATURE, AT_NETWORK, RECENTRED, PAPER, BURNISH)


def make_verdict(trusted=True, reason="held-out NLL 0.1400.", held_out=True):
    scores = (Score(0.21, 0.03), Score(0.15, 0.02), Score(0.14, None))
    found = HeldOut(50, *scores, *(0.07, 0.01), *(0.01, 0.01)) if held_out else None
    drift = Drift(0.004, 0.002, 0.03, 0.8, 1.5, False, 96, 800)
    return Verdict(trusted, reason, drift, 0.31, 800.0, 1000, -105.0, 2.0, 0.1, held_out=found)


def draw_probs(num_points, seed, scale=2.0):
    return (scale * torch.randn(num_points, 10, generator=make_generator(seed))).softmax(-1)


def make_row(name, seed):
    outside = {key: draw_probs(30, seed + i) for i, key in enumerate(("uniform noise", "digits on their side", "letters"))}
    weights = None if name in (NETWORK, TEMPERATURE) else torch.randn(40, 30, generator=make_generator(seed))
    bound = None if weights is None else Elbo(-100.0 - seed, 0.5)
    trace = torch.linspace(-300.0, -101.0, 50) if name in (PAPER, BURNISH) else None
    probs = draw_probs(60, seed)
    scores = {"accuracy": 0.9, "nll": 0.5 - seed / 100, "ece": 0.02, "brier": 0.1}
    return Row(name, probs, outside, **scores, seconds=0.1 * seed, elbo=bound, draws=weights, trace=trace)


@pytest.fixture(scope="module")
def demo():
    generator = make_generator(0)
    images = torch.rand(60, 1, 8, 8, generator=generator)
    return DigitsDemo(
        rows=tuple(make_row(name, seed) for seed, name in enumerate(NAMES)),
        test=Batch(images, torch.randint(10, (60,), generator=generator)),
        theta=torch.randn(30, generator=generator),
        prediction=Prediction(draw_probs(60, 5), torch.zeros(60, 10), torch.zeros(60)),
        log_evidence=-99.0,
        nll_difference=Interval(-0.01, -0.02, 0.003, 0.95),
        verdict=make_verdict(),
        rungs=(Rung("laplace", make_verdict(False), 0.5), Rung("flow", make_verdict(), 1.5)),
        seed=3,
        settings=Settings(sizes=(100, 50, 60)),
        target={"prior_mean": "zero", "precision": 12.0, "data": "both", "parameters": 30, "fitted_to": 100},
        train_accuracy=1.0,
        seconds={"training": 1.0, "refining it": 2.0, "refining it: flow": 1.5},
        versions={"torch": "2"},
    )


@pytest.fixture(scope="module")
def page(demo):
    return html.render(demo)


@pytest.fixture
def no_figures(monkeypatch):
    """For tests of the words alone: drawing takes a second."""
    empty = dict.fromkeys(("reliability", "elbo", "marginals", "confidence"), "<svg></svg>")
    monkeypatch.setattr(html, "_figures", lambda *_: empty)


class Reader(HTMLParser):
    """Collects what a page consists of, and fails where tags do not match."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.ids, self.words = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> without a beginning"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", "".join(self.words))


def read(page):
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return reader


def test_tags_are_balanced_ids_unique_and_references_resolve(page):
    reader = read(page)
    assert len(reader.ids) == len(set(reader.ids))
    for _, attributes in reader.tags:
        for name in ("aria-labelledby", "xlink:href"):
            if name in attributes:
                assert attributes[name].removeprefix("#") in reader.ids
    assert dict(reader.tags[0][1])["lang"] == "en"
    assert any(tag == "meta" and attributes.get("name") == "viewport" for tag, attributes in reader.tags)


def test_it_needs_nothing_from_anywhere(page):
    reader = read(page)
    assert not [tag for tag, _ in reader.tags if tag in ("script", "iframe", "object", "embed")]
    for tag, attributes in reader.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_every_row_every_number_and_every_section_is_there(page, demo):
    reader = read(page)
    for row in demo.rows:
        assert row.name in reader.text
        assert f"{row.nll:.4f}" in reader.text
    assert [tag for tag, _ in reader.tags].count("figure") == 4
    sections = ["verdict", "table", "figures", "outside", "uncertain", "wrong", "made"]
    assert [name for name in reader.ids if name in sections] == sections
    assert "run_demo(3)" in reader.text


def test_the_command_that_made_it_is_shown(demo, no_figures):
    assert "make again" in read(html.render(demo, command="make again")).text


def test_images_are_there_with_words_for_those_who_cannot_see_them(page, demo):
    images = [attributes for tag, attributes in read(page).tags if tag == "img"]
    wrong = int((demo.row(NETWORK).probs.argmax(1) != demo.test.targets).sum())
    assert len(images) == 8 + min(8, wrong)
    assert all(len(image["alt"]) > 10 and image["src"].startswith("data:image/png;base64,") for image in images)


def test_hostile_names_are_escaped(demo):
    extra = replace(demo.rows[2], name=HOSTILE)
    verdict = make_verdict(trusted=False, reason=HOSTILE)
    page = html.render(
        replace(demo, rows=(*demo.rows, extra), verdict=verdict, versions={HOSTILE: HOSTILE}), command=HOSTILE
    )
    assert "<script" not in page.lower()
    assert page.count(escape(HOSTILE).replace("&#x27;", "&#39;")) >= 4
    read(page)


def best_cells(page):
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", page, re.DOTALL)[: len(NAMES)]
    return [re.findall(r'data-label="([^"]+)"[^>]*><span><b>', row) for row in rows]


def test_the_best_of_a_column_is_bold_whoever_it_is(demo, no_figures):
    rows = list(demo.rows)
    rows[1] = replace(rows[1], nll=0.01, seconds=9.0)
    found = best_cells(html.render(replace(demo, rows=tuple(rows))))
    assert [NAMES[i] for i, labels in enumerate(found) if "NLL" in labels] == [TEMPERATURE]
    assert [NAMES[i] for i, labels in enumerate(found) if "ELBO" in labels] == [AT_NETWORK]
    assert not any("accuracy" in labels for labels in found)  # all are equal: none is best


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(-0.02, 0.01, "cannot be told apart"), (-0.02, -0.01, "burnish is better"), (0.01, 0.02, "burnish is worse")],
)
def test_the_words_follow_the_numbers(demo, no_figures, low, high, words):
    text = read(html.render(replace(demo, nll_difference=Interval(0.5 * (low + high), low, high, 0.95)))).text
    assert words in text
    others = {"cannot be told apart", "burnish is better", "burnish is worse"} - {words}
    assert not any(other in text for other in others)


def test_a_verdict_that_distrusts_or_knows_no_held_out_data_says_so(demo, no_figures):
    verdict = make_verdict(trusted=False, reason="k-hat is 2.1", held_out=False)
    text = read(html.render(replace(demo, verdict=verdict))).text
    assert "Not trusted" in text
    assert "k-hat is 2.1" in text
    assert "No held-out data" in text


def test_a_network_without_mistakes_and_numbers_without_end_are_shown(demo):
    labels = demo.row(NETWORK).probs.argmax(1)
    rows = [replace(row, elbo=row.elbo and Elbo(-1e9, 3e4)) for row in demo.rows]
    page = html.render(replace(demo, rows=tuple(rows), test=replace(demo.test, targets=labels)))
    assert "makes no mistake" in page
    assert "\N{MINUS SIGN}1,000,000,000" in page


def test_writing_is_atomic_and_makes_folders(demo, page, tmp_path, monkeypatch):
    path = html.write_report(demo, tmp_path / "deep" / "report.html")
    assert path.read_text(encoding="utf-8") == page
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(OSError, match="no"):
        html.write_report(demo, path)
    assert [child.name for child in path.parent.iterdir()] == ["report.html"]


def test_the_template_comes_with_the_package():
    assert files("burnish.report").joinpath("template.html").is_file()


PROBE = """
<iframe id="frame" width="{width}" height="900" srcdoc="{page}"></iframe><pre id="result"></pre>
<script>
document.getElementById("frame").addEventListener("load", function () {{
  const root = this.contentDocument.documentElement;
  const images = [...this.contentDocument.images].map(image => image.complete ? image.naturalWidth : 0);
  const drawings = [...this.contentDocument.querySelectorAll("svg")].map(svg => svg.getBoundingClientRect().width);
  const result = {{ scroll: root.scrollWidth, client: root.clientWidth, images, drawings }};
  document.getElementById("result").textContent = JSON.stringify(result);
}});
</script>
"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
@pytest.mark.parametrize("width", [400, 1280])
def test_a_browser_shows_all_of_it_without_scrolling_sideways(page, tmp_path, width):
    wrapper = tmp_path / "wrapper.html"
    wrapper.write_text(f"<!DOCTYPE html>{PROBE.format(width=width, page=escape(page))}", encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000", "--virtual-time-budget=5000"]
    command += ["--enable-logging=stderr", "--v=0", "--dump-dom", wrapper.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    result = json.loads(re.search(r'<pre id="result">(.*?)</pre>', done.stdout)[1])
    assert result["scroll"] <= result["client"] <= width
    assert len(result["images"]) == page.count("<img ")
    assert set(result["images"]) == {8}
    assert len(result["drawings"]) == 4
    assert min(result["drawings"]) > 300
