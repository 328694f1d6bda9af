"""The LSTM layer of oneDNN and its gradient: one direction of one layer, all steps.

The order is that of the layer: the products of all inputs first, then step after step the
product with the state, its sum with that of the input and the bias, the gates, the cell.
Other recurrent layers reach the mode as the operations that torch composes them of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import torch

from fuzzytorch.ops.activation import SIGMOID
from fuzzytorch.ops.call import Call
from fuzzytorch.ops.coarse import NotInBinary64
from fuzzytorch.ops.formula import Formula, fma
from fuzzytorch.ops.pointwise import ADD, MUL, TANH
from fuzzytorch.table import Row, Verdict

LSTM: Final = 2
"""The mode of an LSTM among those of the layer."""

SUM_OF_THREE = Formula(lambda inner, outer, bias: inner + outer + bias)
CELL = Formula(lambda forget, cell, enter, candidate: fma(enter, candidate, forget * cell))
CELL_GRADIENT = Formula(
    lambda grad, grad_h, leave, tanh: fma(grad_h * leave, fma(-tanh, tanh, 1.0), grad)
)
GATE_GRADIENT = Formula(lambda grad, other, gate: grad * other * ((1.0 - gate) * gate))
CANDIDATE_GRADIENT = Formula(lambda grad, other, tanh: grad * other * fma(-tanh, tanh, 1.0))

MARK: Final = torch.frombuffer(bytearray(b"fuzzytorch states"), dtype=torch.uint8)
"""Ends a workspace that holds states after that of stock torch."""


@dataclasses.dataclass(frozen=True, slots=True)
class States:
    """What the steps of a layer computed.

    Attributes:
        gates: ``(steps, batch, 4 * hidden)``, after their functions: input, forget, candidate,
            output.
        cells: ``(steps, batch, hidden)``.
        tanhs: ``(steps, batch, hidden)``, hyperbolic tangents of the cells.
    """

    gates: torch.Tensor
    cells: torch.Tensor
    tanhs: torch.Tensor

    def packed(self) -> torch.Tensor:
        """The states as bytes, and the mark."""
        values = torch.cat([self.gates, self.cells, self.tanhs], 2)
        return torch.cat([values.view(-1).view(torch.uint8), MARK])

    @classmethod
    def unpacked(
        cls, workspace: torch.Tensor, steps: int, batch: int, hidden: int, dtype: torch.dtype
    ) -> States | None:
        """The states at the end of a workspace, or ``None`` where stock torch made it."""
        length = steps * batch * hidden * 6 * dtype.itemsize
        end = workspace.numel() - MARK.numel()
        if end < length or not torch.equal(workspace[end:], MARK):
            return None
        values = workspace[end - length : end].clone().view(dtype).view(steps, batch, 6 * hidden)
        return cls(*values.split([4 * hidden, hidden, hidden], 2))


def _run(
    call: Call,
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    bias: torch.Tensor | None,
    h: torch.Tensor,
    c: torch.Tensor,
    reverse: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, States]:
    """Outputs of all steps, last output, last cell, states; ``x`` is ``(steps, batch, width)``."""
    steps, batch, width = x.shape
    hidden = h.shape[1]
    inner, outer = weights
    projected = call.gemm(x.reshape(-1, width), inner.t()).view(steps, batch, 4 * hidden)
    outputs = x.new_empty(steps, batch, hidden)
    states = States(*(x.new_empty(steps, batch, n * hidden) for n in (4, 1, 1)))
    for t in _order(steps, reverse):
        product = call.gemm(h, outer.t())
        if bias is None:
            sums = ADD(call, projected[t], product, out=product)
        else:
            sums = SUM_OF_THREE(call, projected[t], product, bias, out=product)
        gates = states.gates[t]
        for function, first, last in ((SIGMOID, 0, 2), (TANH, 2, 3), (SIGMOID, 3, 4)):
            columns = slice(first * hidden, last * hidden)
            function(call, sums[:, columns], out=gates[:, columns])
        enter, forget, candidate, leave = gates.chunk(4, 1)
        c = CELL(call, forget, c, enter, candidate, out=states.cells[t])
        tanh = TANH(call, c, out=states.tanhs[t])
        h = MUL(call, leave, tanh, out=outputs[t])
    return outputs, h.clone(), c.clone(), states


def _order(steps: int, reverse: bool) -> list[int]:
    order = list(range(steps))
    return order[::-1] if reverse else order


def _only_lstm(mode: int, batch_sizes: Sequence[int], x: torch.Tensor) -> None:
    if mode != LSTM or len(batch_sizes) > 0 or x.numel() == 0:
        raise NotInBinary64


def rnn_layer(
    call: Call,
    x: torch.Tensor,
    weight0: torch.Tensor,
    weight1: torch.Tensor,
    weight2: torch.Tensor,
    weight3: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Output, last output, last cell, and the workspace that the gradient needs."""
    _only_lstm(mode, batch_sizes, x)
    bias = ADD(call, weight2, weight3) if has_biases else None
    h, c = (s.reshape(-1, hidden_size) for s in (hx, cx))
    output, hy, cy, states = _run(call, x, (weight0, weight1), bias, h, c, reverse)
    workspace = None
    if torch.is_grad_enabled():
        # The gradient may be asked for outside of the mode: stock torch finds its own first.
        options = (reverse, batch_sizes, mode, hidden_size, num_layers, has_biases)
        own = call.overload(
            *(x, weight0, weight1, weight2, weight3, hx, cx),
            *options,
            *(bidirectional, batch_first, train),
        )[3]
        workspace = None if own is None else torch.cat([own, states.packed()])
    return output, hy.view(hx.shape), cy.view(cx.shape), workspace


def rnn_layer_backward(
    call: Call,
    x: torch.Tensor,
    weight1: torch.Tensor,
    weight2: torch.Tensor,
    weight3: torch.Tensor,
    weight4: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor,
    output: torch.Tensor,
    hy: torch.Tensor,
    cy: torch.Tensor,
    grad_output: torch.Tensor | None,
    grad_hy: torch.Tensor | None,
    grad_cy: torch.Tensor | None,
    reverse: bool,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    batch_first: bool,
    workspace: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Gradients of input, weights, biases and states, step by step from the last one.

    The states are those of the forward pass; where that ran outside of the mode, they are
    computed again under it.
    """
    _only_lstm(mode, batch_sizes, x)
    steps, batch, width = x.shape
    h, c = (s.reshape(-1, hidden_size) for s in (hx, cx))
    states = States.unpacked(workspace, steps, batch, hidden_size, x.dtype)
    if states is None:
        bias = ADD(call, weight3, weight4) if has_biases else None
        states = _run(call, x, (weight1, weight2), bias, h, c, reverse)[3]
    slopes, grad_h, grad_c = _slopes(
        call, states, weight2, c, grad_output, grad_hy, grad_cy, reverse
    )
    previous = [output[1:], h[None]] if reverse else [h[None], output[:-1]]
    flat = slopes.view(-1, 4 * hidden_size)
    grad_x = call.gemm(flat, weight1).view(x.shape)
    grad_inner = call.gemm(flat.t(), x.reshape(-1, width))
    grad_outer = call.gemm(flat.t(), torch.cat(previous).view(-1, hidden_size))
    grad_bias = call.reduce("sum", flat, [0])
    return (
        *(grad_x, grad_inner, grad_outer, grad_bias, grad_bias.clone()),
        *(grad_h.view(hx.shape), grad_c.view(cx.shape)),
    )


def _slopes(
    call: Call,
    states: States,
    outer: torch.Tensor,
    c: torch.Tensor,
    grad_output: torch.Tensor | None,
    grad_hy: torch.Tensor | None,
    grad_cy: torch.Tensor | None,
    reverse: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of the sums in front of the gates, and of the states before the first step."""
    steps = states.gates.shape[0]
    zero = torch.zeros_like(c)
    grad_h = zero if grad_hy is None else grad_hy.reshape(c.shape)
    grad_c = zero if grad_cy is None else grad_cy.reshape(c.shape)
    slopes = torch.empty_like(states.gates, memory_format=torch.contiguous_format)
    order = _order(steps, not reverse)
    for i, t in enumerate(order):
        enter, forget, candidate, leave = states.gates[t].chunk(4, 1)
        before = states.cells[order[i + 1]] if i + 1 < steps else c
        tanh = states.tanhs[t]
        total = grad_h if grad_output is None else ADD(call, grad_output[t], grad_h)
        grad = CELL_GRADIENT(call, grad_c, total, leave, tanh)
        of_enter, of_forget, of_candidate, of_leave = slopes[t].chunk(4, 1)
        GATE_GRADIENT(call, grad, candidate, enter, out=of_enter)
        GATE_GRADIENT(call, grad, before, forget, out=of_forget)
        CANDIDATE_GRADIENT(call, grad, enter, candidate, out=of_candidate)
        GATE_GRADIENT(call, total, tanh, leave, out=of_leave)
        grad_c = MUL(call, grad, forget)
        grad_h = call.gemm(slopes[t], outer)
    return slopes, grad_h, grad_c


def _row(name: str, function: Any, why: str) -> Row:
    return Row(f"aten.{name}.default", Verdict.ROUNDED, function, why)


ROWS: tuple[Row, ...] = (
    _row(
        "mkldnn_rnn_layer",
        rnn_layer,
        "products of all inputs, then per step the product with the state, both sums, the gates, "
        "cell and output; exponentials and tanh once, from binary64",
    ),
    _row(
        "mkldnn_rnn_layer_backward",
        rnn_layer_backward,
        "per step the gradients of cell, gates and state; then those of input and weights as one "
        "product over all steps (stock torch: step by step), of the bias as one sum",
    ),
)
