"""Laws of streaming moments, of the digits of a whole tensor, and of vectors up to their sign."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fuzzytorch import digits
from fuzzytorch.digits.normal import norm

KINDS = {"numpy": np.asarray, "torch": torch.as_tensor}


def scatter(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return 5.0 + 1e-6 * generator.standard_normal((count, *shape))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64])
def test_moments_that_come_one_by_one_are_those_of_all_samples(dtype: torch.dtype) -> None:
    samples = torch.as_tensor(scatter(9, 4, 3)).to(dtype)
    samples[2, 1, 1] = math.nan
    samples[3, 0, 2] = math.inf
    running = digits.Running()
    for sample in samples:
        running.add(sample)
    found, expected = running.digits(), digits.significant(samples)
    assert (found.count, found.cap) == (expected.count, expected.cap)
    np.testing.assert_array_equal(found.nonfinite, expected.nonfinite)
    for name in ("mean", "std", "digits", "lower"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-8)


def test_equal_samples_have_a_std_of_exactly_zero_when_they_come_one_by_one() -> None:
    running = digits.Running()
    for _ in range(7):
        running.add(np.array([0.1, -3e300, 1e-310]))
    assert running.digits().std.tolist() == [0.0, 0.0, 0.0]
    assert running.digits().mean.tolist() == [0.1, -3e300, 1e-310]


def test_one_sample_has_no_digits_and_samples_of_another_shape_are_refused() -> None:
    running = digits.Running()
    running.add(np.ones(3))
    with pytest.raises(ValueError, match="at least two samples, got 1"):
        running.digits()
    with pytest.raises(ValueError, match="must be alike"):
        running.add(np.ones(4))


def test_the_digits_of_a_whole_are_those_of_the_norms() -> None:
    samples = scatter(6, 50) * np.logspace(0, -8, 50)
    found = digits.significant(samples)
    expected = math.log10(np.linalg.norm(found.mean) / np.linalg.norm(found.std))
    assert found.overall == pytest.approx(expected, rel=1e-12)
    # A spoilt element that is small among the others hardly counts; a large one does.
    for place, lost in ((49, False), (0, True)):
        spoilt = samples.copy()
        spoilt[:, place] *= np.linspace(0.5, 1.5, 6)
        assert (digits.significant(spoilt).overall < 1.0) == lost


def test_the_digits_of_a_whole_leave_out_what_is_not_finite_and_know_zeros() -> None:
    samples = scatter(4, 3)
    expected = digits.significant(samples[:, 1:]).overall
    samples[1, 0] = math.inf
    assert digits.significant(samples).overall == pytest.approx(expected, rel=1e-12)
    assert math.isnan(digits.significant(np.full((3, 2), math.nan)).overall)
    assert digits.significant(np.zeros((3, 2))).overall == digits.cap(np.zeros(1))
    assert digits.significant(np.array([[1.0], [-1.0]])).overall == 0.0


def test_a_norm_neither_overflows_nor_underflows() -> None:
    assert norm(np.full(4, 1e300)) == 2e300
    assert norm(np.full(4, -1e-300)) == 2e-300
    assert norm(np.zeros(3)) == norm(np.empty(0)) == 0.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_real_vectors_that_differ_in_sign_become_equal(kind: str, dim: int) -> None:
    vectors = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    signs = np.random.default_rng(2).choice([-1.0, 1.0], (8, 3, 5)).astype(np.float32)
    signs = np.take(signs, [0], axis=1 + dim % 2)
    assert len(np.unique(signs * vectors, axis=0)) > 1
    found = digits.up_to_sign(KINDS[kind](signs * vectors), dim)
    assert isinstance(found, torch.Tensor) == (kind == "torch")
    assert found.dtype == KINDS[kind](vectors).dtype
    np.testing.assert_array_equal(np.asarray(found), np.broadcast_to(signs[0] * vectors, (8, 3, 5)))
    found = digits.up_to_sign(KINDS[kind](signs * vectors), dim, KINDS[kind](vectors))
    np.testing.assert_array_equal(np.asarray(found), np.broadcast_to(vectors, (8, 3, 5)))


@pytest.mark.parametrize("kind", KINDS)
def test_complex_vectors_that_differ_in_phase_become_equal(kind: str) -> None:
    generator = np.random.default_rng(1)
    vectors = (generator.standard_normal((4, 4)) + 1j * generator.standard_normal((4, 4))) * 10
    phases = np.exp(2j * math.pi * generator.random((6, 1, 4)))
    found = digits.up_to_sign(KINDS[kind](phases * vectors), -2, KINDS[kind](vectors))
    np.testing.assert_allclose(np.asarray(found), np.broadcast_to(vectors, (6, 4, 4)), rtol=1e-13)


def test_vectors_without_a_side_stay_as_they_are() -> None:
    samples = np.array([[1.0, 0.0], [0.0, -1.0], [math.nan, 1.0], [0.0, 0.0]])
    np.testing.assert_array_equal(digits.up_to_sign(samples, 0), samples)


@pytest.mark.parametrize("dim", [2, -3])
def test_an_axis_that_a_sample_lacks_is_refused(dim: int) -> None:
    with pytest.raises(ValueError, match="no axis"):
        digits.up_to_sign(np.ones((4, 2, 2)), dim)


def test_a_reference_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="must be the same"):
        digits.up_to_sign(np.ones((4, 2)), 0, np.ones(3))


@pytest.mark.parametrize("kind", KINDS)
def test_values_within_the_noise_of_each_other_are_flagged(kind: str) -> None:
    noise = 1e-4 * np.random.default_rng(3).standard_normal((20, 1))
    values = KINDS[kind](np.array([3.0, 1.0, 1.0005, 2.0, 2.1]) + noise)
    found: Any = digits.degenerate(values)
    assert isinstance(found, torch.Tensor) == (kind == "torch")
    assert found.tolist() == [False, True, True, False, False]
    assert digits.degenerate(values, gap=1e4).all()
    assert digits.degenerate(KINDS[kind](np.ones((3, 2, 2)))).all()
    assert digits.degenerate(KINDS[kind](np.ones((3, 1)))).tolist() == [False]
    with pytest.raises(ValueError, match="no neighbours"):
        digits.degenerate(KINDS[kind](np.ones(3)))
