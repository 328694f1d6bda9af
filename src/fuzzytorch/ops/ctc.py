"""The loss of connectionist temporal classification and its gradient.

The recursions are those of Graves et al. (2006) in logarithms, as stock torch runs them, step
after step in time.  The states of a step are independent of each other: those that stock torch
visits are computed together, padding never.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import Formula, exp
from fuzzytorch.ops.pointwise import ADD, LOG
from fuzzytorch.ops.softmax import EXP_OF_DIFFERENCE
from fuzzytorch.table import Row, Verdict

SUM_OF_THREE = Formula(lambda a, b, c: a + b + c)
GRADIENT = Formula(
    lambda log_prob, joint, loss, grad: (exp(log_prob) - exp(joint + loss - log_prob)) * grad
)

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True, slots=True)
class Lattice:
    """The states of every sequence: blanks around and between its labels.

    Attributes:
        labels: ``(batch, states)``, blank in even places; blank, too, beyond the end.
        inside: ``(batch, states)``, where a state is not beyond the end.
        steps: ``(batch,)``, lengths in time.
        ends: ``(batch,)``, the last state of every sequence.
    """

    labels: torch.Tensor
    inside: torch.Tensor
    steps: torch.Tensor
    ends: torch.Tensor

    @classmethod
    def of(
        cls, targets: torch.Tensor, steps: Sequence[int], lengths: Sequence[int], blank: int
    ) -> Lattice:
        """From targets padded, ``(batch, longest)``, or one after the other, ``(labels,)``."""
        if targets.dim() == 1:
            rows = targets.split(list(lengths)) if lengths else ()
        else:
            rows = tuple(row[:n] for row, n in zip(targets, lengths, strict=True))
        ends = 2 * torch.tensor(lengths)
        labels = torch.full((len(lengths), 2 * max(lengths) + 1), blank)
        for row, own in zip(labels, rows, strict=True):
            row[1 : 2 * len(own) : 2] = own
        inside = torch.arange(labels.shape[1]) <= ends[:, None]
        return cls(labels, inside, torch.tensor(steps), ends)

    def flipped(self, x: torch.Tensor) -> torch.Tensor:
        """Values of states, ``(batch, states)``, with those inside in reverse order."""
        return x.gather(1, self._mirrored()).masked_fill(~self.inside, -math.inf)

    def reversed(self) -> Lattice:
        """The lattice of the reversed sequences."""
        return dataclasses.replace(self, labels=self.labels.gather(1, self._mirrored()))

    def skips(self) -> torch.Tensor:
        """Where a state may follow the one before the last, whose label is another one."""
        differs = torch.zeros_like(self.inside)
        differs[:, 2:] = self.labels[:, 2:] != self.labels[:, :-2]
        return differs

    def _mirrored(self) -> torch.Tensor:
        states = torch.arange(self.labels.shape[1])
        return torch.where(self.inside, self.ends[:, None] - states, states)

    def scores(self, log_probs: torch.Tensor) -> torch.Tensor:
        """The logarithm of the probability of the label of every state: ``(time, batch, states)``.

        Raises:
            IndexError: a label that is not one of those of ``log_probs``.
        """
        classes = log_probs.shape[2]
        wrong = (self.labels < 0) | (self.labels >= classes)
        if bool(wrong.any()):
            raise IndexError(
                f"a target of ctc_loss is {int(self.labels[wrong][0])}, but log_probs has "
                f"{classes} classes: targets are from 0 to {classes - 1}."
            )
        return log_probs.gather(2, self.labels.expand(len(log_probs), -1, -1))


def _log_of_sum(call: Call, terms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The logarithm of the sum of ``exp(terms - largest)``, and ``largest``, over dimension 1.

    ``terms`` is ``(n, 2)`` or ``(n, 3)``.
    """
    largest = terms.amax(1)
    # All are impossible: -inf less -inf is NaN.
    largest = largest.masked_fill(largest == -math.inf, 0.0)
    powers = EXP_OF_DIFFERENCE(call, terms, largest[:, None]).unbind(1)
    total = ADD(call, *powers) if len(powers) == 2 else SUM_OF_THREE(call, *powers)
    return LOG(call, total), largest


def _step(
    call: Call, skips: torch.Tensor, before: torch.Tensor, scores: torch.Tensor, where: torch.Tensor
) -> torch.Tensor:
    """The states one step later, all ``(batch, states)``; impossible but for those ``where``."""
    padded = pad(before, (2, 0), value=-math.inf)
    skipping = padded[:, :-2].masked_fill(~skips, -math.inf)
    terms = torch.stack([before, padded[:, 1:-1], skipping], 2)
    logs, largest = _log_of_sum(call, terms[where])
    after = torch.full_like(before, -math.inf)
    after[where] = SUM_OF_THREE(call, logs, largest, scores[where])
    return after


def _start(lattice: Lattice, scores: torch.Tensor) -> torch.Tensor:
    """The states after the first step: the first blank, or the first label."""
    first = torch.full_like(scores, -math.inf)
    first[:, :2] = scores[:, :2].masked_fill(~lattice.inside[:, :2], -math.inf)
    return first


def ctc_loss(
    call: Call,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, ``(batch,)``, and logarithms of joint probabilities, ``(batch, time, states)``."""
    lattice = Lattice.of(targets, input_lengths, target_lengths, blank)
    scores = lattice.scores(log_probs)
    alpha = torch.full_like(scores, -math.inf, memory_format=torch.contiguous_format)
    alpha[0] = _start(lattice, scores[0])
    skips = lattice.skips()
    for t in range(1, int(lattice.steps.max())):
        where = lattice.inside & (lattice.steps > t)[:, None]
        alpha[t] = _step(call, skips, alpha[t - 1], scores[t], where)
    return _losses(call, lattice, alpha), alpha.transpose(0, 1).contiguous()


def _losses(call: Call, lattice: Lattice, alpha: torch.Tensor) -> torch.Tensor:
    batch = torch.arange(len(lattice.steps))
    last = alpha[(lattice.steps - 1).clamp(min=0), batch]
    blank = last[batch, lattice.ends]
    label = last[batch, (lattice.ends - 1).clamp(min=0)]
    losses = -blank
    both = (lattice.ends > 0) & (lattice.steps > 0)
    logs, largest = _log_of_sum(call, torch.stack([blank, label], 1)[both])
    losses[both] = -ADD(call, logs, largest)
    # Without a step, nothing but the empty sequence is possible.
    impossible = torch.where(lattice.ends > 0, math.inf, 0.0).to(losses.dtype)
    return torch.where(lattice.steps > 0, losses, impossible)


def ctc_loss_backward(
    call: Call,
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """The gradient for ``log_probs``: the recursion backwards, its product with the one forwards
    summed over the states of each label, the difference to the probabilities."""
    lattice = Lattice.of(targets, input_lengths, target_lengths, blank)
    scores = lattice.scores(log_probs)
    beta = _backwards(call, lattice, scores)
    joint = _collected(call, lattice, log_alpha.transpose(0, 1), beta, log_probs)
    within = torch.arange(len(log_probs))[:, None] < lattice.steps
    if zero_infinity:
        within &= neg_log_likelihood != math.inf
    batch = within.nonzero()[:, 1]
    loss, own = neg_log_likelihood[batch, None], log_probs[within]
    result = torch.zeros_like(log_probs, memory_format=torch.contiguous_format)
    result[within] = GRADIENT(call, own, joint[within], loss, grad[batch, None])
    return result


def _backwards(call: Call, lattice: Lattice, scores: torch.Tensor) -> torch.Tensor:
    """Logarithms of the probabilities of what follows, ``(time, batch, states)``."""
    mirror = lattice.reversed()
    skips = mirror.skips()
    beta = torch.full_like(scores, -math.inf, memory_format=torch.contiguous_format)
    after = torch.full_like(scores[0], -math.inf)
    for t in reversed(range(int(lattice.steps.max()))):
        own = lattice.flipped(scores[t])
        where = lattice.inside & (lattice.steps > t + 1)[:, None]
        before = _step(call, skips, after, own, where)
        starts = (lattice.steps == t + 1)[:, None]
        after = torch.where(starts, _start(mirror, own), before)
        beta[t] = lattice.flipped(after)
    return beta


def _collected(
    call: Call,
    lattice: Lattice,
    alpha: torch.Tensor,
    beta: torch.Tensor,
    log_probs: torch.Tensor,
) -> torch.Tensor:
    """Logarithms of the sums over the states of each label, ``(time, batch, labels)``.

    State after state from the last one, as stock torch adds them; at the last step of a
    sequence its last label and blank alone.
    """
    joint = torch.full_like(log_probs, -math.inf, memory_format=torch.contiguous_format)
    time = torch.arange(len(log_probs))[:, None]
    running = time < lattice.steps - 1
    ending = time == lattice.steps - 1
    for state in reversed(range(lattice.labels.shape[1])):
        last = ending & (lattice.ends - state < 2)
        where = (running | last) & lattice.inside[:, state]
        label = lattice.labels[:, state].expand(len(time), -1)[where]
        index = (*where.nonzero().unbind(1), label)
        found = ADD(call, alpha[..., state][where], beta[..., state][where])
        known = joint[index]
        # The first of a label is stored, as is the label that ends a sequence.
        both = (known != -math.inf) & ~last[where]
        logs, largest = _log_of_sum(call, torch.stack([known, found], 1)[both])
        found[both] = ADD(call, logs, largest)
        joint[index] = found
    return joint


def _lengths(x: torch.Tensor, name: str) -> list[int]:
    if x.is_floating_point() or x.dtype == torch.bool:
        raise RuntimeError(f"{name} must be integral")
    return x.flatten().tolist()


def with_tensors(
    call: Call,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *options: Any,
    **named: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`ctc_loss` with lengths in tensors."""
    steps = _lengths(input_lengths, "input_lengths")
    lengths = _lengths(target_lengths, "target_lengths")
    return aten._ctc_loss.default(log_probs, targets, steps, lengths, *options, **named)


def backward_with_tensors(
    call: Call,
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *options: Any,
    **named: Any,
) -> torch.Tensor:
    """:func:`ctc_loss_backward` with lengths in tensors."""
    steps = _lengths(input_lengths, "input_lengths")
    lengths = _lengths(target_lengths, "target_lengths")
    return aten._ctc_loss_backward.default(
        grad, log_probs, targets, steps, lengths, *options, **named
    )


ROWS: tuple[Row, ...] = (
    Row(
        "aten._ctc_loss.default",
        Verdict.ROUNDED,
        ctc_loss,
        "per step and state three differences, exponentials and a logarithm (once each, from "
        "binary64) and four sums",
    ),
    Row(
        "aten._ctc_loss_backward.default",
        Verdict.ROUNDED,
        ctc_loss_backward,
        "the recursion backwards as forwards, the sums over the states of each label one after "
        "the other, exponentials and logarithms once each, from binary64",
    ),
    Row(
        "aten._ctc_loss.Tensor",
        Verdict.LOWERED,
        with_tensors,
        "the overload that takes lengths as numbers",
    ),
    Row(
        "aten._ctc_loss_backward.Tensor",
        Verdict.LOWERED,
        backward_with_tensors,
        "the overload that takes lengths as numbers",
    ),
)
