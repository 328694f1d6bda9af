"""Elementwise programs: what one pass over memory computes for every element.

A :class:`Program` is a short straight-line sequence of scalar operations.
Registers are numbered: first the inputs, then the scalars, then one result per
instruction; the last result is the output.  A single ``add`` and the whole
update of an optimizer are the same kind of value, so that one primitive, one
native kernel and one reference interpreter serve all elementwise operations,
and composite operations, transcendental functions included, round once per scalar operation without
a temporary.
"""

from __future__ import annotations

import dataclasses
from typing import Final

ROUNDED: Final = ("add", "sub", "mul", "div", "sqrt", "fma", "round")
"""Operations rounded under the mode: ``fma`` is ``a*b + c``; ``round`` stores a binary64 input."""

FUNCTIONS: Final = ("exp", "expm1", "log", "log1p", "tanh", "erf")
"""Functions evaluated in binary64 (:mod:`fuzzytorch.backends.functions`), then rounded once."""

EXACT: Final = ("neg", "abs", "min", "max", "copysign", "select")
"""Operations without rounding: ``min``/``max`` propagate NaN; ``select`` is ``a > 0 ? b : c``."""

OPCODES: Final = ROUNDED + FUNCTIONS + EXACT
"""All operations; their positions are the codes that native kernels know."""

ARITY: Final = {
    **dict.fromkeys(("add", "sub", "mul", "div", "min", "max", "copysign"), 2),
    **dict.fromkeys(("sqrt", "round", "neg", "abs", *FUNCTIONS), 1),
    **dict.fromkeys(("fma", "select"), 3),
}

TILE: Final = 1024
"""Elements that share a row of the stream; also the chunk a kernel keeps in the L1 cache."""

LANES: Final = 64
"""Columns of a tile: element ``e`` of a tile is column ``e % 64`` at step ``e // 64``."""


Instruction = tuple[str, int] | tuple[str, int, int] | tuple[str, int, int, int]
"""An operation and the registers that it reads."""


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """An elementwise program.

    Attributes:
        inputs: number of tensor inputs.
        scalars: number of scalar inputs (values of the dtype).
        code: instructions ``(operation, register, ...)``.

    Raises:
        ValueError: an unknown operation, a wrong number of operands, a register
            that is not yet defined, or ``round`` of anything but an input.
    """

    inputs: int
    scalars: int
    code: tuple[Instruction, ...]

    def __post_init__(self) -> None:
        defined = self.inputs + self.scalars
        if not self.code:
            raise ValueError("an elementwise program needs at least one instruction.")
        for operation, *operands in self.code:
            if operation not in OPCODES:
                raise ValueError(f"unknown operation {operation!r} in an elementwise program.")
            if len(operands) != ARITY[operation]:
                raise ValueError(f"{operation} takes {ARITY[operation]} operands, got {operands}.")
            if any(not 0 <= r < defined for r in operands):
                raise ValueError(f"{operation}{tuple(operands)} reads an undefined register.")
            if operation == "round" and operands[0] >= self.inputs:
                raise ValueError("round applies to a binary64 input, not to a result.")
            defined += 1

    @property
    def roundings(self) -> int:
        """Rounded scalar operations per element."""
        return sum(op not in EXACT for op, *_ in self.code)

    @property
    def encoded(self) -> tuple[int, ...]:
        """The code as flat integers ``(opcode, a, b, c)`` per instruction, for native kernels."""
        flat: list[int] = []
        for operation, *operands in self.code:
            flat += [OPCODES.index(operation), *operands, *[0] * (3 - len(operands))]
        return tuple(flat)
