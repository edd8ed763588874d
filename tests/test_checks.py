"""Argument checks: what they let through, and that messages name the argument, what came and the remedy."""

import math

import pytest
import torch

from burnish._checks import (
    available_memory,
    check_at_least,
    check_choice,
    check_finite,
    check_like,
    check_memory,
    check_positive,
)

CPU = torch.device("cpu")


def test_good_values_pass():
    check_at_least("count", 2, 2)
    check_positive("std", 1)
    check_positive("std", 1e-300)
    check_positive("std", torch.tensor([0.1, 2.0]))
    check_choice("mode", "a", ["a", "b"])
    check_finite("inputs", torch.tensor([1.0, -1e38]), "Drop.")
    check_finite("inputs", torch.tensor([1, 2]), "Drop.")
    check_like("theta", torch.zeros(2), torch.ones(3), "the data")


def test_integer_below_the_minimum():
    with pytest.raises(ValueError, match=r"^`count` must be at least 1, got 0\. Pass more\.$"):
        check_at_least("count", 0, 1, "Pass more.")


@pytest.mark.parametrize("value", [True, 2.0, "2", None])
def test_not_an_integer(value):
    with pytest.raises(TypeError, match=rf"^`count` must be an integer, got {type(value).__name__}\.$"):
        check_at_least("count", value, 1)


@pytest.mark.parametrize("value", [0, 0.0, -1.5, math.nan, math.inf, -math.inf])
def test_not_positive(value):
    with pytest.raises(ValueError, match=rf"^`std` must be positive and finite, got {value:g}\. Remedy\.$"):
        check_positive("std", value, "Remedy.")


@pytest.mark.parametrize("value", [True, "1", None])
def test_positive_not_a_number(value):
    with pytest.raises(TypeError, match=rf"^`std` must be a number, got {type(value).__name__}\.$"):
        check_positive("std", value)


@pytest.mark.parametrize("bad", [0.0, -2.0, math.nan, math.inf])
def test_tensor_not_positive(bad):
    value = torch.tensor([[1.0, bad], [bad, 3.0]])
    with pytest.raises(
        ValueError, match=rf"`std` must be positive and finite, got {bad:g} \(2 of 4 entries are not\)\. Remedy\."
    ):
        check_positive("std", value, "Remedy.")


def test_unknown_choice():
    with pytest.raises(ValueError, match=r"^`structure` must be one of 'full', 'kron', got 'dense'\. Pass one of them\.$"):
        check_choice("structure", "dense", ["full", "kron"])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_not_finite(bad):
    value = torch.zeros(2, 3)
    value[1, 2] = bad
    with pytest.raises(
        ValueError, match=r"`inputs` must be finite, got 1 NaN or infinite of 6 entries, .*first at \(1, 2\)\. Drop it\."
    ):
        check_finite("inputs", value, "Drop it.")


def test_other_dtype():
    message = r"`theta` must be torch.float64 on cpu like the data, got torch.float32 on cpu\. Convert it with `\.to"
    with pytest.raises(TypeError, match=message):
        check_like("theta", torch.zeros(2), torch.zeros(2, dtype=torch.float64), "the data")


def test_other_device():
    with pytest.raises(TypeError, match=r"`theta` must be torch.float32 on meta like the data, got torch.float32 on cpu\."):
        check_like("theta", torch.zeros(2), torch.zeros(2, device="meta"), "the data")


def test_memory_is_refused_with_size_and_alternative():
    with pytest.raises(
        MemoryError, match=r"^the Hessian needs 1048576\.0 GiB, .* [GM]iB are available on cpu; use the diagonal\.$"
    ):
        check_memory("the Hessian", 2**50, CPU, "use the diagonal.")


def test_memory_sizes_below_a_gibibyte_are_mebibytes(monkeypatch):
    monkeypatch.setattr("burnish._checks.available_memory", lambda device: 2**20)
    with pytest.raises(MemoryError, match=r"needs 1\.5 MiB, 1\.0 MiB are available"):
        check_memory("it", 3 * 2**19, CPU, "do less.")
    check_memory("it", 2**20, CPU, "do less.")


def test_available_memory_without_proc(monkeypatch):
    def refuse(*arguments, **options):
        raise FileNotFoundError

    with_proc = available_memory(CPU)
    monkeypatch.setattr("builtins.open", refuse)
    assert 2**20 < with_proc <= available_memory(CPU) < 2**50
