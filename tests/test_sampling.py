"""Laws of repeated runs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import fuzzytorch as ft
from fuzzytorch.digits import significant
from fuzzytorch.digits.quantiles import student_quantile
from fuzzytorch.ensemble import Leaf, Samples, sample
from fuzzytorch.ensemble.samples import FALSE_ALARM
from fuzzytorch.rounding import MODES, Rounding

X = torch.rand(5, 40, generator=torch.Generator().manual_seed(1))
W = torch.rand(40, 3, generator=torch.Generator().manual_seed(2))


def product() -> torch.Tensor:
    return X @ W


def raising(errors: dict[int, BaseException]) -> Callable[[], torch.Tensor]:
    """A computation that raises in the calls of the given numbers."""
    calls: Iterator[int] = iter(range(10**6))

    def run() -> torch.Tensor:
        call = next(calls)
        if call in errors:
            raise errors[call]
        return product()

    return run


def returning(results: list[Any]) -> Callable[[], Any]:
    remaining = iter(results)
    return lambda: next(remaining)


def test_sample_i_is_a_run_under_replica_i() -> None:
    samples = sample(product, n=4, seed=5)
    for i in range(4):
        with ft.fuzzy(mode="sr", seed=5, replica=i):
            assert torch.equal(samples.values[i], product())
    assert samples.replicas == (0, 1, 2, 3)
    assert len(samples) == 4
    assert len({tuple(v.flatten().tolist()) for v in samples.values}) == 4


def test_a_drawn_seed_is_reported_and_repeats_the_ensemble() -> None:
    first, second = sample(product, n=2), sample(product, n=2)
    assert first.seed != second.seed
    assert not torch.equal(first.values, second.values)
    assert torch.equal(sample(product, n=2, seed=first.seed).values, first.values)


def test_nothing_stays_switched_on_after_an_ensemble() -> None:
    before = product()
    sample(product, n=2, seed=0)
    sample(raising({1: ValueError("planted")}), n=3, seed=0)
    assert torch.equal(product(), before)


def test_every_kind_of_leaf_is_stacked_and_keeps_its_place_in_the_tree() -> None:
    def run() -> Any:
        y = product()
        return {
            "tensor": y,
            "array": [y.numpy().copy(), np.float32(2.5)],
            "number": (y.sum().item(), 3, True, 1j),
            "text": "name",
            "labels": y.argmax(1),
        }

    samples = sample(run, n=3, seed=0)
    values = samples.values
    assert values["tensor"].shape == (3, 5, 3)
    assert values["array"][0].shape == (3, 5, 3)
    assert values["array"][1].dtype == np.float32
    assert [v.dtype.kind for v in values["number"]] == ["f", "i", "b", "c"]
    assert values["text"].tolist() == ["name"] * 3
    assert values["labels"].dtype == torch.int64
    assert isinstance(samples.mean["tensor"], torch.Tensor)
    assert isinstance(samples.mean["array"][0], np.ndarray)
    assert samples.digits["labels"] is None
    assert samples.mean["text"] is None
    names = [leaf.name for leaf in samples.leaves]
    assert names[0] == "['tensor']"
    assert "['number'][3]" in names


def test_digits_mean_and_std_are_those_of_the_estimator() -> None:
    samples = sample(product, n=6, seed=3)
    expected = significant(samples.values)
    for name in ("mean", "std", "digits", "lower"):
        assert torch.equal(getattr(samples, name), getattr(expected, name))
    assert bool((samples.digits > 5).all())
    assert bool((samples.lower < samples.digits).any())


def test_the_reference_is_stock_torch_and_z_its_distance() -> None:
    samples = sample(product, n=10, seed=3)
    assert torch.equal(samples.reference, product())
    expected = (product().double() - samples.mean).abs() / samples.std
    torch.testing.assert_close(samples.z, expected)
    without = sample(product, n=2, seed=3, reference=False)
    assert without.reference is None
    assert without.z is None


def test_a_stock_value_within_the_noise_is_not_called_an_outlier() -> None:
    generator = torch.Generator().manual_seed(4)
    x, w = torch.rand(60, 100, generator=generator), torch.rand(100, 60, generator=generator)
    (leaf,) = sample(lambda: x @ w, n=10, seed=4).leaves
    assert leaf.outliers == 0
    assert 0 < leaf.excess.max() < 10


def test_a_stock_value_that_is_one_more_sample_is_not_called_an_outlier() -> None:
    # The false alarms of 20,000 elements together are as rare as those of one.
    draws = 1.0 + 1e-3 * np.random.default_rng(0).standard_normal((11, 20_000))
    leaf = Leaf("output", draws[1:], draws[0])
    assert leaf.outliers == 0
    limit = student_quantile(FALSE_ALARM, 9) * math.sqrt(1.1)
    assert np.count_nonzero(leaf.excess > limit) > 5


def test_what_is_read_from_samples_under_a_mode_is_not_perturbed() -> None:
    outside, inside = (sample(product, n=3, seed=0) for _ in range(2))
    with ft.fuzzy(mode="ud", seed=1):
        read = inside.mean, inside.std, inside.digits, inside.lower, inside.z
    for a, b in zip(
        read, (outside.mean, outside.std, outside.digits, outside.lower, outside.z), strict=True
    ):
        assert torch.equal(a, b)


def test_an_ensemble_under_a_mode_is_that_outside_of_it() -> None:
    outside = sample(product, n=3, seed=0)
    with ft.fuzzy(mode="up", seed=1) as mode, ft.fuzzy(mode="ud", seed=1):
        inside = sample(product, n=3, seed=0)
    assert torch.equal(inside.reference, product())
    assert torch.equal(inside.values, outside.values)
    assert mode.coverage.operations == 0


def test_a_planted_difference_in_one_element_is_called_an_outlier() -> None:
    first = True

    def run() -> torch.Tensor:
        nonlocal first
        y = product()
        if first:
            y[3, 1] *= 1.001
        first = False
        return y

    samples = sample(run, n=10, seed=4)
    assert samples.leaves[0].outliers == 1
    assert "outside the samples in 1 of 15 elements" in samples.summary()


def test_a_stock_value_one_unit_off_samples_that_agree_is_not_called_an_outlier() -> None:
    value = torch.tensor([1.0, 0.0])
    beside = torch.nextafter(value, torch.tensor(2.0)) * torch.tensor([1.0, 0.0])
    samples = sample(returning([beside, *[value] * 4]), n=4, seed=0)
    assert samples.z.tolist() == [math.inf, 0.0]
    assert samples.leaves[0].outliers == 0


@pytest.fixture(scope="module")
def tenths() -> dict[str, Samples]:
    def run() -> torch.Tensor:
        total, tenth = torch.zeros(()), torch.tensor(0.1)
        for _ in range(10_000):
            total = total + tenth
        return total

    return {mode: sample(run, n=5, mode=mode, seed=0) for mode in ("sr", "ud")}


def test_ten_thousand_tenths_show_the_bias_of_nearest_rounding(tenths: dict[str, Samples]) -> None:
    samples = tenths["sr"]
    assert samples.reference.item() == pytest.approx(999.9029, abs=1e-4)
    # 5 standard errors of the mean of 5 samples with the published std of 0.0022.
    assert abs(samples.mean.item() - 1000.0000149) < 5 * 0.0022 / math.sqrt(5)
    assert samples.z.item() > 10
    assert "IEEE value lies outside the samples" in samples.summary()


def test_digits_of_ud_are_not_presented_as_accuracy(tenths: dict[str, Samples]) -> None:
    samples = tenths["ud"]
    assert abs(samples.mean.item() - 999.9029) < 5 * 0.0045 / math.sqrt(5)
    summary = samples.summary()
    assert "not how accurate" in summary
    assert "outside the samples" not in summary


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_that_draws_nothing_is_said_to_show_nothing(mode: str) -> None:
    summary = sample(product, n=2, mode=mode, seed=0).summary()
    assert ("draws nothing" in summary) == (not Rounding(mode).draws)


def test_only_the_rounding_differs_between_samples() -> None:
    def run() -> Any:
        kept = torch.nn.functional.dropout(torch.ones(200), training=True) != 0
        return kept, torch.rand(3), np.random.rand(3), random.random()

    torch.manual_seed(11)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    samples = sample(run, n=4, seed=0)
    assert [leaf.changed for leaf in samples.leaves] == [0, 0, 0, 0]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]


def test_a_failing_sample_is_recorded_and_the_others_go_on() -> None:
    samples = sample(raising({2: ArithmeticError("not positive")}), n=5, seed=0, reference=False)
    assert samples.replicas == (0, 1, 3, 4)
    (failure,) = samples.failures
    assert (failure.replica, failure.error) == (2, "ArithmeticError: not positive")
    assert "1 of 5 samples failed" in samples.summary()
    assert "ArithmeticError: not positive" in samples.summary()


def test_a_stock_run_that_fails_is_noted_and_the_samples_go_on() -> None:
    samples = sample(raising({0: ArithmeticError("not positive")}), n=2, seed=0)
    assert len(samples) == 2
    assert samples.z is None
    assert "run without noise failed: ArithmeticError: not positive" in samples.summary()


def test_fewer_than_two_finished_samples_are_an_error_with_its_cause() -> None:
    error = ArithmeticError("planted")
    run = raising({1: error, 2: error})
    with pytest.raises(RuntimeError, match=r"only 1 of 3 samples finished.*planted") as caught:
        sample(run, n=3, seed=0, reference=False)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("n", [1, 0, -3, True, 2.5])
def test_fewer_than_two_samples_are_refused_with_a_sentence(n: Any) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        sample(product, n=n)


def test_what_cannot_be_called_is_refused_with_a_sentence() -> None:
    with pytest.raises(TypeError, match=r"fn=tensor\(1\.\) cannot be called: give a function"):
        sample(torch.tensor(1.0), n=3)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*(prototype|without perturbation).*:UserWarning")
@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (lambda: torch.nested.nested_tensor([torch.ones(2)]), "a nested tensor.*y.unbind()"),
        (lambda: torch.ones(2, device="meta"), "a meta tensor, which holds no numbers"),
    ],
)
def test_results_that_cannot_be_stacked_are_named(result: Any, sentence: str) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        sample(result, n=3, reference=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"mode": "nearest"}, "mode"), ({"seed": -1}, "seed"), ({"format": "float12"}, "format")],
)
def test_bad_input_is_refused_before_anything_runs(arguments: Any, words: str) -> None:
    calls: list[int] = []
    with pytest.raises(ValueError, match=words):
        sample(lambda: calls.append(1), n=2, **arguments)
    assert not calls


def test_an_interruption_keeps_the_finished_samples() -> None:
    samples = sample(raising({3: KeyboardInterrupt()}), n=10, seed=0, reference=False)
    assert samples.replicas == (0, 1, 2)
    assert "Interrupted: 3 of the 10" in samples.summary()
    assert torch.equal(samples.values, sample(product, n=3, seed=0).values)


def test_an_interruption_before_two_samples_is_an_interruption() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        sample(raising({1: KeyboardInterrupt()}), n=10, seed=0, reference=False)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "odd", [{"a": torch.ones(2)}, torch.ones(3), torch.ones(2).double(), "text"]
)
def test_a_sample_of_another_structure_or_shape_is_recorded_as_failed(odd: Any) -> None:
    run = returning([torch.ones(2), torch.ones(2), odd, torch.ones(2)])
    samples = sample(run, n=4, seed=0, reference=False)
    assert samples.replicas == (0, 1, 3)
    assert "must be alike" in samples.failures[0].error


def test_results_that_are_overwritten_later_keep_their_value() -> None:
    tensor, array = torch.zeros(2), np.zeros(2)

    def run() -> Any:
        tensor.add_(1)
        np.add(array, 1, out=array)
        return tensor, array

    samples = sample(run, n=3, seed=0, reference=False)
    assert samples.values[0][:, 0].tolist() == [1, 2, 3]
    assert samples.values[1][:, 0].tolist() == [1, 2, 3]


def test_gradients_do_not_leak_out_of_the_samples() -> None:
    weight = W.clone().requires_grad_()
    assert not sample(lambda: X @ weight, n=2, seed=0).values.requires_grad


def test_nan_and_inf_are_counted_in_the_summary() -> None:
    results = [torch.tensor([1.0, 2.0, 3.0]) for _ in range(3)]
    results[1][0] = math.nan
    for result in results:
        result[2] = math.inf
    samples = sample(returning(results), n=3, seed=0, reference=False)
    assert samples.digits.isnan().tolist() == [True, False, True]
    assert "2 of 3 elements are NaN or Inf in some sample (1 in every sample)" in samples.summary()


def test_discrete_results_are_said_to_be_equal_or_to_differ() -> None:
    results = [(torch.tensor([1, 2, 3]), "a"), (torch.tensor([1, 5, 3]), "a")]
    rows = sample(returning(results), n=2, seed=0, reference=False).summary().splitlines()
    assert any("[0]" in row and "differs in 1 of 3" in row for row in rows)
    assert any("[1]" in row and "equal" in row for row in rows)


def test_a_python_number_taken_from_binary32_has_no_more_digits_than_binary32() -> None:
    samples = sample(lambda: (torch.tensor(0.1).item(), 0.1), n=2, seed=0)
    assert samples.digits[0] == pytest.approx(7.2, abs=0.05)
    assert samples.digits[1] == pytest.approx(15.95, abs=0.05)


def test_no_elements_are_no_digits() -> None:
    assert "none" in sample(lambda: torch.empty(0, 3), n=2, seed=0).summary()


def test_the_summary_names_shape_digits_seed_and_coverage() -> None:
    samples = sample(lambda: {"logits": product()}, n=10, seed=42)
    summary = samples.summary()
    (row,) = (line for line in summary.splitlines() if line.startswith("['logits']"))
    _, shape, mean, minimum, bound, std, z = row.split()
    assert shape == "5x3"
    digits = samples.digits["logits"]
    assert float(mean) == pytest.approx(digits.mean().item(), abs=0.005)
    assert float(minimum) == pytest.approx(digits.min().item(), abs=0.005)
    assert float(bound) == pytest.approx(samples.lower["logits"].min().item(), abs=0.005)
    assert float(std) == pytest.approx(samples.std["logits"].max().item(), rel=0.05)
    assert float(z) == pytest.approx(samples.leaves[0].excess.max(), abs=0.05)
    assert "10 samples, mode sr, seed 42" in summary
    assert samples.coverage.headline() in summary


def test_the_coverage_is_that_of_all_replicas() -> None:
    with ft.fuzzy(mode="sr", seed=0) as one:
        product()
    total = one.coverage.merge(one.coverage).merge(one.coverage)
    assert sample(product, n=3, seed=0).coverage.to_json() == total.to_json()


def test_progress_is_told_after_every_run() -> None:
    told: list[int] = []
    sample(product, n=4, seed=0, progress=told.append)
    assert told == [1, 2, 3, 4]
