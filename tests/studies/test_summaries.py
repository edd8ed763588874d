"""Numbers of several seeds in one cell, and the paper's beside them."""

import statistics

import pytest

from burnish.studies.summaries import method_names, method_rows, printed_text, spread


def test_a_cell_is_mean_and_standard_error():
    values = [0.1, 0.4, 0.25, 0.31]
    error = statistics.stdev(values) / 2.0
    assert spread(values, 3) == f"{statistics.fmean(values):.3f} ± {error:.3f}"
    assert spread(values, 1, 100.0) == f"{100 * statistics.fmean(values):.1f} ± {100 * error:.1f}"
    assert spread([2.0, 2.0], 2) == "2.00 ± 0.00"


def test_one_value_has_no_error_and_none_is_nothing():
    assert spread([0.12345], 3) == "0.123"
    assert spread([], 3) == ""


def test_what_is_no_number_is_left_out():
    assert spread([None, 0.5, None], 1) == "0.5"
    assert spread([None, 1.0, 3.0], 1) == spread([1.0, 3.0], 1)
    assert spread([None], 1) == ""


def test_printed_numbers_are_as_printed():
    assert printed_text("calibration_last_layer", "F-MNIST", "HMC", "nll") == "0.2699"
    assert printed_text("calibration_last_layer", "F-MNIST", "MAP", "accuracy") == "90.4"
    assert printed_text("calibration_last_layer", "F-MNIST", "recentred LA", "nll") == ""
    assert printed_text("calibration_last_layer", "F-MNIST", "VB", "mmd") == ""
    assert printed_text("few_vs_many_samples", "CIFAR-100", "MPA", "nll") == ""


def test_an_unknown_table_is_an_error():
    with pytest.raises(KeyError, match="must begin with one of"):
        printed_text("calibration", "F-MNIST", "HMC", "nll")


def test_methods_are_those_of_the_seed_that_has_most():
    parts = [{"rows": {"LA": 1, "HMC": 2}}, {"rows": {"MAP": 3, "LA": 4, "HMC": 5, "VB": 6}}, {"rows": {"MAP": 7}}]
    assert method_names(parts) == ["MAP", "LA", "HMC", "VB"]
    assert method_rows(parts, "LA") == [1, 4]
    assert method_rows(parts, "VB") == [6]
    assert method_rows(parts, "flow") == []
