"""Numbers of the paper: those that anyone with the paper can look up, and what happens where it prints none."""

import dataclasses

import pytest

from burnish.studies.printed import Printed, names, printed, source


def test_a_number_with_its_error():
    assert printed("calibration_last_layer", "F-MNIST", "LA-Refine-5", "mmd") == Printed(0.022, 0.002)
    assert printed("calibration_last_layer", "CIFAR-100", "HMC", "nll") == Printed(0.8849, 0.0047)
    assert printed("calibration_all_layer_fmnist", "LA", "ece") == Printed(7.7, 0.1)
    assert printed("ood_fpr95_detail", "CIFAR-10", "SVHN", "LA-Refine-30") == Printed(35.8, 2.9)


def test_a_number_without_an_error():
    assert printed("toy_logistic_mmd", "LA-Refine") == Printed(0.002, None)
    assert printed("few_vs_many_samples", "F-MNIST", "HMC S=600", "ece") == Printed(3.2, None)


def test_a_row_of_numbers_is_a_list_of_its_own():
    row = printed("shift_corrupted_cifar10_nll", "HMC")
    assert row == [0.1581, 0.4157, 0.6707, 1.0236, 1.2034, 1.414]
    row.append(0.0)
    assert len(printed("shift_corrupted_cifar10_nll", "HMC")) == 6


@pytest.mark.parametrize(
    "keys",
    [
        ("calibration_last_layer", "F-MNIST", "VB", "mmd"),  # not in the table
        ("text", "HMC", "TREC", "mmd"),  # a dash in the table
        ("calibration_last_layer", "F-MNIST", "LA-Refine-7", "nll"),
        ("toy_logistic_mmd", "LA", "mean"),  # beyond a number
    ],
)
def test_where_the_paper_prints_nothing(keys):
    assert printed(*keys) is None
    assert printed(*keys, default=Printed(0.0)) == Printed(0.0)


def test_every_number_is_found_by_its_names():
    """Down to every leaf: a number is finite, a table has entries, and errors are not negative."""

    def leaves(*keys):
        below = names(*keys)
        return [leaf for name in below for leaf in leaves(*keys, name)] if below else [keys]

    found = {keys: printed(*keys) for keys in leaves()}
    assert len(found) > 250
    assert {keys for keys, value in found.items() if value is None} == {
        ("calibration_all_layer_fmnist", "HMC", "mmd"),
        *(("text", "HMC", data, "mmd") for data in ("20NG", "SST", "TREC")),
    }
    for value in found.values():
        numbers = value if isinstance(value, list) else [value.mean] if value else []
        assert all(isinstance(number, float) and number >= 0.0 for number in numbers)
        if isinstance(value, Printed) and value.stderr is not None:
            assert 0.0 <= value.stderr < max(value.mean, 1e-9)


def test_names_lead_from_table_to_number():
    assert "source" not in names()
    assert names("calibration_last_layer") == ("F-MNIST", "CIFAR-10", "CIFAR-100")
    assert names("ood_fpr95_detail", "F-MNIST") == ("EMNIST", "MNIST", "KMNIST")
    assert names("toy_logistic_mmd", "LA") == names("no such table") == ()


def test_a_wrong_table_and_a_path_that_ends_early_are_refused():
    with pytest.raises(KeyError, match="`keys` must begin with one of calibration_last_layer"):
        printed("calibration", "F-MNIST")
    with pytest.raises(KeyError, match="got none"):
        printed()
    with pytest.raises(KeyError):
        printed("source")
    with pytest.raises(ValueError, match=r"Add one of MAP, MAP-Temp, VB"):
        printed("calibration_last_layer", "F-MNIST")


def test_values_are_frozen_and_name_their_source():
    with pytest.raises(dataclasses.FrozenInstanceError):
        printed("toy_logistic_mmd", "LA").mean = 0.0
    assert "Posterior Refinement Improves Sample Efficiency" in source()
