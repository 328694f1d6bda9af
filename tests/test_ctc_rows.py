"""Laws of the loss of connectionist temporal classification that single cases cannot state."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from accumulation_calls import normal
from accumulation_laws import BACKEND

from fuzzytorch.fuzzy import fuzzy
from fuzzytorch.table import Verdict

aten = torch.ops.aten

PADDED = torch.tensor([[1, 2, 2], [3, 3, 1], [4, 1, 4]])

LENGTHS = (
    ([6, 6, 6], [3, 3, 3]),
    ([6, 5, 6], [3, 2, 0]),
    ([6, 1, 2], [3, 1, 3]),
    ([6, 0, 0], [3, 2, 0]),
    ([3, 4, 5], [0, 0, 0]),
)
"""Steps and labels of three sequences, some of which are impossible or empty."""


def both(
    log_probs: torch.Tensor, targets: torch.Tensor, lengths: Any, blank: int, zero: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and its gradient."""
    args = (log_probs, targets, *lengths)
    loss, alpha = aten._ctc_loss(*args, blank, zero)
    grad = normal(len(PADDED)).to(log_probs.dtype)
    return loss, aten._ctc_loss_backward(grad, *args, loss, alpha, blank, zero)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("blank", [0, 2, 4])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_sequences_of_any_lengths_give_what_stock_torch_gives(lengths, blank, zero, dtype) -> None:
    log_probs = normal(6, 3, 5).to(dtype).log_softmax(2)
    log_probs[2, 0, 2] = -math.inf
    joined = torch.cat([row[:n] for row, n in zip(PADDED, lengths[1], strict=True)])
    for targets in (PADDED, PADDED.int(), joined):
        expected = both(log_probs, targets, lengths, blank, zero)
        with fuzzy("rn", backend=BACKEND) as mode:
            found = both(log_probs, targets, lengths, blank, zero)
        torch.testing.assert_close(found, expected, equal_nan=True, check_stride=True)
        rounded = {r.name for r in mode.coverage.records if r.verdict is Verdict.ROUNDED}
        assert rounded == {"aten._ctc_loss.default", "aten._ctc_loss_backward.default"}


def test_lengths_in_tensors_give_the_same_bits() -> None:
    log_probs, (steps, lengths) = normal(6, 3, 5).log_softmax(2), LENGTHS[1]
    found = []
    for given in ((steps, lengths), (torch.tensor(steps), torch.tensor(lengths))):
        x = log_probs.clone().requires_grad_()
        with fuzzy("sr", seed=3, backend=BACKEND, strict=True) as mode:
            loss = torch.nn.functional.ctc_loss(x, PADDED, *given)
            loss.backward()
        found.append((loss.detach(), x.grad))
        assert not any(r.verdict is Verdict.COARSE for r in mode.coverage.records)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_what_lies_beyond_the_end_of_a_sequence_changes_no_bit() -> None:
    lengths = LENGTHS[1]
    x, other, targets = normal(6, 3, 5).log_softmax(2), normal(7, 3, 5), PADDED.clone()
    other[:6] = x
    other[5:, 1] = math.nan
    targets[1, 2], targets[2] = -7, 99
    with fuzzy("sr", seed=5, backend=BACKEND):
        expected = both(x, PADDED, lengths, 0, False)
    with fuzzy("sr", seed=5, backend=BACKEND):
        loss, gradient = both(other, targets, lengths, 0, False)
    assert torch.equal(loss, expected[0])
    assert torch.equal(gradient[:6], expected[1])
    assert not gradient[5:, 1].any()
    assert not gradient[6:].any()


@pytest.mark.parametrize("wrong", [-1, 5])
def test_a_label_without_a_probability_is_refused(wrong: int) -> None:
    x, targets = normal(6, 3, 5).log_softmax(2), PADDED.clone()
    targets[1, 0] = wrong
    with (
        fuzzy("sr", seed=0, backend=BACKEND),
        pytest.raises(IndexError, match=f"a target of ctc_loss is {wrong}, .* from 0 to 4"),
    ):
        aten._ctc_loss(x, targets, *LENGTHS[0])


def test_lengths_that_stock_torch_refuses_are_refused_after_others_were_taken() -> None:
    x = normal(6, 3, 5).log_softmax(2)
    with fuzzy("sr", seed=0, backend=BACKEND):
        for steps, labels in LENGTHS[:2]:
            aten._ctc_loss.Tensor(x, PADDED, torch.tensor(steps), torch.tensor(labels))
        for wrong in ([6, 7, 6], [6, -1, 6]):
            with pytest.raises(RuntimeError, match="input_lengths"):
                aten._ctc_loss.Tensor(x, PADDED, torch.tensor(wrong), torch.tensor([3, 3, 3]))
        with pytest.raises(RuntimeError, match="targets"):
            aten._ctc_loss.Tensor(x, PADDED, torch.tensor([6, 6, 6]), torch.tensor([3, 4, 3]))
        with pytest.raises(RuntimeError, match="input_lengths must be integral"):
            aten._ctc_loss.Tensor(x, PADDED, torch.tensor([6.0, 6, 6]), torch.tensor([3, 3, 3]))


def test_steps_of_a_running_logarithm_of_float64_sums_are_rounded() -> None:
    x = normal(3, 40, 2).double()
    with fuzzy("rn", backend=BACKEND):
        found = x.logcumsumexp(1)
    torch.testing.assert_close(found, x.logcumsumexp(1))
    with fuzzy("sr", seed=0, backend=BACKEND) as mode:
        first = x.logcumsumexp(1)
    (record,) = mode.coverage.records
    assert (record.verdict, record.operations) == (Verdict.ROUNDED, 3 * 39 * 2 * 4)
    with fuzzy("sr", seed=1, backend=BACKEND):
        assert not torch.equal(first, x.logcumsumexp(1))
