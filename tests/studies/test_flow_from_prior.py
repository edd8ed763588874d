"""The paper's flow from two starts: what is fitted, what is scored, and what stands beside it."""

import json

import pytest
from image_cases import make_record

from burnish import metrics
from burnish.predictive import predict_at
from burnish.studies import flow_from_prior
from burnish.studies.flow_from_prior import LENGTHS, STARTS, run_seed, summary
from burnish.studies.paper_base import fit_paper_base


@pytest.mark.parametrize("protocol", ["paper", "ours"])
def test_nll_is_that_of_few_draws_of_each_flow(protocol, request, monkeypatch):
    methods = request.getfixturevalue(protocol)
    fitted, fit_paper_flows = [], flow_from_prior.fit_paper_flows

    def kept(targets, bases, lengths, **options):
        assert options["likelihood_bias"] == (protocol == "ours")
        fits = fit_paper_flows(targets, bases, lengths, **options)
        fitted.extend(zip(bases, fits.posteriors, strict=True))
        return fits

    monkeypatch.setattr(flow_from_prior, "fit_paper_flows", kept)
    part = run_seed(methods)
    problem = methods.problem
    assert part["lengths"] == list(LENGTHS) == [1, 5, 10, 20]
    assert all(seconds > 0.0 for seconds in (*part["seconds"], part["batch_seconds"]))
    json.dumps(part, allow_nan=False)
    for name, (_, flows) in zip(STARTS, fitted, strict=True):
        generator = problem.stream(f"flow-from-prior {name}")
        for place, flow in enumerate(flows):
            theta = flow.sample(problem.setting.settings.few, generator=generator)
            probs = predict_at(*methods.seen(theta), problem.features("test")).probs
            assert part["nll"][name][place] == metrics.nll(probs, problem.setting.labels("test"))
    standard, base = (start for start, _ in fitted)
    assert (standard.mean == 0.0).all()
    assert (standard.scale.std == 1.0).all()
    assert (base.mean == fit_paper_base(problem)[0].mean).all()


def test_a_flow_from_nowhere_is_worse_than_one_from_laplace(paper):
    nll = run_seed(paper)["nll"]
    assert all(far > near for far, near in zip(nll["N(0,I)+NF"], nll["LA+NF"], strict=True))


def make_part(seconds):
    return {
        "lengths": list(LENGTHS),
        "nll": {"N(0,I)+NF": [1.4, 0.3, 0.2, 0.18], "LA+NF": [0.17, 0.16, 0.16, 0.16]},
        "seconds": seconds,
    }


def test_printed_rows_stand_under_the_papers_protocol_alone():
    part = make_part([4.0, 8.0, 12.0, 20.0])
    header, rows = summary(make_record("cifar-10", "paper", part))
    assert header == ["layers", "1", "5", "10", "20"]
    assert [row[0] for row in rows] == [
        *("NLL, N(0,I)+NF", "  printed", "NLL, LA+NF", "  printed"),
        *("seconds of one flow alone", "more from 5 to 10 layers, %", "  printed"),
    ]
    assert rows[1] == ["  printed", "1.4292", "0.2700", "0.1765", "0.1659"]
    assert rows[5][3] == "50"
    assert rows[6][3] == "53"
    assert all(len(row) == len(header) for row in rows)
    for dataset, protocol, expected in (("cifar-10", "ours", 0), ("fashion-mnist", "paper", 1), ("cifar-100", "paper", 0)):
        _, rows = summary(make_record(dataset, protocol, part, part))
        assert [row[0] for row in rows].count("  printed") == expected
        assert rows[2][1:] == ["4.0 ± 0.0", "8.0 ± 0.0", "12.0 ± 0.0", "20.0 ± 0.0"]
