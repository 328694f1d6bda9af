"""Elementwise programs written as Python expressions.

``Formula(lambda a, b, c: a + b * c)`` is the program that multiplies, rounds,
adds and rounds again.  Instructions are emitted in the order in which Python
evaluates the expression, so that the order on the page is the order of the
draws.  Calling a formula runs it on tensors and numbers alike.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.program import Program


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Register:
    """A value inside a formula: an operand, a constant, or the result of an instruction."""

    code: list[tuple[Any, ...]]
    kind: str
    key: Any

    def _emit(self, operation: str, *operands: Any) -> Register:
        registers = [self._of(x) for x in operands]
        self.code.append((operation, *registers))
        return Register(self.code, "result", len(self.code) - 1)

    def _of(self, x: Any) -> Register:
        return x if isinstance(x, Register) else Register(self.code, "constant", float(x))

    def __add__(self, other: Any) -> Register:
        return self._emit("add", self, other)

    def __radd__(self, other: Any) -> Register:
        return self._emit("add", other, self)

    def __sub__(self, other: Any) -> Register:
        return self._emit("sub", self, other)

    def __rsub__(self, other: Any) -> Register:
        return self._emit("sub", other, self)

    def __mul__(self, other: Any) -> Register:
        return self._emit("mul", self, other)

    def __rmul__(self, other: Any) -> Register:
        return self._emit("mul", other, self)

    def __truediv__(self, other: Any) -> Register:
        return self._emit("div", self, other)

    def __rtruediv__(self, other: Any) -> Register:
        return self._emit("div", other, self)

    def __neg__(self) -> Register:
        return self._emit("neg", self)

    def __abs__(self) -> Register:
        return self._emit("abs", self)


def sqrt(x: Register) -> Register:
    """The square root, rounded."""
    return x._emit("sqrt", x)


def fma(a: Register, b: Any, c: Any) -> Register:
    """``a * b + c`` with one rounding."""
    return a._emit("fma", a, b, c)


def exp(x: Register) -> Register:
    """The exponential, evaluated in binary64 and rounded; likewise the functions below."""
    return x._emit("exp", x)


def expm1(x: Register) -> Register:
    """``exp(x) - 1``."""
    return x._emit("expm1", x)


def log(x: Register) -> Register:
    """The natural logarithm."""
    return x._emit("log", x)


def log1p(x: Register) -> Register:
    """``log(1 + x)``."""
    return x._emit("log1p", x)


def tanh(x: Register) -> Register:
    """The hyperbolic tangent."""
    return x._emit("tanh", x)


def erf(x: Register) -> Register:
    """The error function."""
    return x._emit("erf", x)


def minimum(a: Register, b: Any) -> Register:
    """The smaller one, NaN if either is."""
    return a._emit("min", a, b)


def maximum(a: Register, b: Any) -> Register:
    """The larger one, NaN if either is."""
    return a._emit("max", a, b)


def select(condition: Register, positive: Any, otherwise: Any) -> Register:
    """``positive`` where ``condition > 0``, else (NaN included) ``otherwise``."""
    return condition._emit("select", condition, positive, otherwise)


class Formula:
    """An elementwise program as a function of registers.

    Args:
        function: takes one :class:`Register` per operand and returns the last
            one that it computed.  Every operator in it rounds once; ``abs``,
            ``-x``, :func:`minimum`, :func:`maximum` and :func:`select` are exact.
    """

    __slots__ = ("_arity", "_function", "_plans")

    def __init__(self, function: Callable[..., Register]) -> None:
        self._function = function
        self._arity = len(inspect.signature(function).parameters)
        self._plans: dict[Any, tuple[Program, tuple[float, ...]]] = {}

    def __call__(self, call: Call, *operands: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        """Runs the formula on tensors (broadcast) and Python numbers, at least one tensor.

        Numbers are converted to the dtype of the call as torch does.  ``out`` as in
        :meth:`~fuzzytorch.ops.call.Call.elementwise`.
        """
        kinds = tuple([isinstance(x, torch.Tensor) for x in operands])
        plan = self._plans.get((call.dtype, kinds))
        if plan is None:
            program, constants = self.plan(kinds)
            constants = tuple([call.number(x) for x in constants])
            plan = self._plans[call.dtype, kinds] = program, constants
        program, constants = plan
        tensors = [x for x, tensor in zip(operands, kinds, strict=True) if tensor]
        numbers = [call.number(x) for x, tensor in zip(operands, kinds, strict=True) if not tensor]
        return call.elementwise(program, *tensors, scalars=(*numbers, *constants), out=out)

    def plan(self, kinds: tuple[bool, ...]) -> tuple[Program, tuple[float, ...]]:
        """The program, and the constants that follow its scalar operands, not yet converted.

        Args:
            kinds: per operand, whether it is a tensor (else a number).
        """
        if len(kinds) != self._arity:
            raise ValueError(f"this formula takes {self._arity} operands, got {len(kinds)}.")
        code: list[tuple[Any, ...]] = []
        result = self._function(*(Register(code, "operand", i) for i in range(self._arity)))
        if result.kind != "result" or result.key != len(code) - 1:
            raise ValueError("a formula must return the value that it computed last.")
        operands = sorted(range(self._arity), key=lambda i: not kinds[i])
        read = [x for _, *registers in code for x in registers if x.kind == "constant"]
        constants = tuple(dict.fromkeys(x.key for x in read))
        inputs, scalars = sum(kinds), self._arity - sum(kinds) + len(constants)

        def number(x: Register) -> int:
            if x.kind == "operand":
                return operands.index(x.key)
            if x.kind == "constant":
                return self._arity + constants.index(x.key)
            return inputs + scalars + x.key

        numbered = tuple((name, *map(number, registers)) for name, *registers in code)
        return Program(inputs, scalars, numbered), constants
