"""The matrix exponential: Taylor polynomials, and squaring where the matrix is large.

As in stock torch the degree, 1 to 18, follows from the 1-norm of each matrix, and polynomials of
higher degree are products of polynomials of lower ones (Bader, Blanes, Casas 2019).  A matrix
beyond the reach of degree 18 is scaled by a power of two and its exponential squared.  The
gradient reaches the table as the exponential of a matrix of twice the size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import torch

from fuzzytorch.ops import complex_functions
from fuzzytorch.ops.call import Call
from fuzzytorch.ops.matrix_steps import components, copied, divide, product, rows
from fuzzytorch.ops.pointwise import ADD, DIV, EXP
from fuzzytorch.table import Row

REACH: Final = {
    torch.float32: (
        1.192092800768788e-07,
        5.978858893805233e-04,
        5.116619363445086e-02,
        5.800524627688768e-01,
        1.461661507209034e00,
        3.010066362817634e00,
    ),
    torch.float64: (
        2.220446049250313e-16,
        2.580956802971767e-08,
        3.397168839976962e-04,
        4.991228871115323e-02,
        2.996158913811580e-01,
        1.090863719290036e00,
    ),
}
"""The largest 1-norms for the degrees 1, 2, 4, 8, 12 and 18, by dtype."""

_ROOT: Final = math.sqrt(177.0)
_X3: Final = 2.0 / 3.0
DEGREE_8: Final = (
    (_X3 * (1.0 + _ROOT) / 88.0, _X3 * (1.0 + _ROOT) / 352.0),
    (_X3, 1.0),
    (
        (-271.0 + 29.0 * _ROOT) / (315.0 * _X3),
        (-11.0 + 11.0 * _ROOT) / (1260.0 * _X3),
        (-99.0 + 11.0 * _ROOT) / (5040.0 * _X3),
        (89.0 - _ROOT) / (5040.0 * _X3 * _X3),
    ),
    (1.0, 1.0, (857.0 - 58.0 * _ROOT) / 630.0, 0.0, 1.0),
)
DEGREE_12: Final = (
    (9.0198e-16, 0.46932117595418237389, -0.20099424927047284052, -0.04623946134063071740),
    (
        5.31597895759871264183,
        1.19926790417132231573,
        0.01179296240992997031,
        0.01108844528519167989,
    ),
    (
        0.18188869982170434744,
        0.05502798439925399070,
        0.09351590770535414968,
        0.00610700528898058230,
    ),
    (-2.0861320e-13, -0.13181061013830184015, -0.02027855540589259079, -0.00675951846863086359),
)
DEGREE_18: Final = (
    (0.0, -1.00365581030144618291e-01, -8.02924648241156932449e-03, -8.92138498045729985177e-04, 0),
    (
        0.0,
        3.97849749499645077844e-01,
        1.36783778460411720168e00,
        4.98289622525382669416e-01,
        -6.37898194594723280150e-04,
    ),
    (
        -1.09676396052962061844e01,
        1.68015813878906206114e00,
        5.71779846478865511061e-02,
        -6.98210122488052056106e-03,
        3.34975017086070470649e-05,
    ),
    (
        -9.04316832390810593223e-02,
        -6.76404519071381882256e-02,
        6.75961301770459654925e-02,
        2.95552570429315521194e-02,
        -1.39180257516060693404e-05,
    ),
    (
        0.0,
        0.0,
        -9.23364619367118555360e-02,
        -1.69364939002081722752e-02,
        -1.40086798182036094347e-05,
    ),
)
"""Coefficients of the linear combinations of powers, in the order in which they are needed."""


def _combined(
    call: Call, coefficients: Sequence[Sequence[float]], *terms: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Sums of multiples of matrices: one chain of fused multiply-adds for each row."""
    numbers = [[call.number(c) for c in row] for row in coefficients]
    matrix = torch.tensor(numbers, dtype=call.dtype)
    stacked = torch.stack(terms)
    shape = components(terms[0]).shape
    sums = call.gemm(matrix, components(stacked).reshape(len(terms), -1))
    sums = sums.view(len(numbers), *shape)
    return (torch.view_as_complex(sums) if stacked.is_complex() else sums.squeeze(-1)).unbind()


def _plus(call: Call, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not a.is_complex():
        return ADD(call, a, b)
    return torch.view_as_complex(ADD(call, torch.view_as_real(a), torch.view_as_real(b)))


def _divided(call: Call, a: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    quotient = copied(a)
    divide(call, quotient, divisor)
    return quotient


def _identity(a: torch.Tensor) -> torch.Tensor:
    return torch.eye(a.shape[-1], dtype=a.dtype).expand(a.shape)


def _degree_1(call: Call, a: torch.Tensor) -> torch.Tensor:
    return _plus(call, _identity(a), a)


def _degree_2(call: Call, a: torch.Tensor) -> torch.Tensor:
    half = _divided(call, product(call, a, a), a.real.new_tensor(2.0))
    return _plus(call, _degree_1(call, a), half)


def _degree_4(call: Call, a: torch.Tensor) -> torch.Tensor:
    one, a2 = _identity(a), product(call, a, a)
    (inner,) = _combined(call, [(1 / 2.0, 1 / 6.0, 1 / 24.0)], one, a, a2)
    (y,) = _combined(call, [(1.0, 1.0, 0.0, 1.0)], one, a, a2, product(call, a2, inner))
    return y


def _degree_8(call: Call, a: torch.Tensor) -> torch.Tensor:
    first, left, right, last = DEGREE_8
    one, a2 = _identity(a), product(call, a, a)
    (inner,) = _combined(call, [first], a, a2)
    a4 = product(call, a2, inner)
    (factor,) = _combined(call, [left], a2, a4)
    (other,) = _combined(call, [right], one, a, a2, a4)
    (y,) = _combined(call, [last], one, a, a2, a4, product(call, factor, other))
    return y


def _degree_12(call: Call, a: torch.Tensor) -> torch.Tensor:
    a2 = product(call, a, a)
    b = _combined(call, DEGREE_12, _identity(a), a, a2, product(call, a, a2))
    a6 = _plus(call, b[2], product(call, b[3], b[3]))
    return _plus(call, b[0], product(call, _plus(call, b[1], a6), a6))


def _degree_18(call: Call, a: torch.Tensor) -> torch.Tensor:
    a2 = product(call, a, a)
    a3 = product(call, a, a2)
    b = _combined(call, DEGREE_18, _identity(a), a, a2, a3, product(call, a3, a3))
    a9 = _plus(call, b[3], product(call, b[0], b[4]))
    return _plus(call, b[1], product(call, _plus(call, b[2], a9), a9))


_DEGREES: Final[tuple[Callable[[Call, torch.Tensor], torch.Tensor], ...]] = (
    _degree_1,
    _degree_2,
    _degree_4,
    _degree_8,
    _degree_12,
)


def _squared(call: Call, a: torch.Tensor, norm: torch.Tensor, reach: float) -> torch.Tensor:
    """Degree 18 of a scaled matrix, squared as often as it was halved."""
    quotient = DIV(call, norm, reach)
    halvings = call.via_binary64(torch.log2, quotient).ceil().clamp(min=0).to(torch.int64)
    y = _degree_18(call, _divided(call, a, torch.pow(2, halvings)[:, None, None]))
    for step in range(int(halvings.max())):
        # Matrices that are done wait for the others.
        left = (halvings > step).nonzero().squeeze(1)
        y[left] = product(call, y[left], y[left])
    return y


def matrix_exp(call: Call, a: torch.Tensor) -> torch.Tensor:
    """The exponentials of matrices ``(..., n, n)``, contiguous.

    The norm is rounded like everything else, so that the degree may differ from one
    realisation to the next where the norm lies close to a limit.
    """
    if a.shape[-1] == 1 or a.numel() == 0:
        a = a.contiguous()
        if a.is_complex():
            return complex_functions.evaluated(call, a, function=torch.exp)
        return EXP(call, a)
    batch = a.reshape(-1, *a.shape[-2:])
    sizes = (
        complex_functions.evaluated(call, batch, function=torch.abs) if a.is_complex() else batch
    )
    norm = call.reduce("sum", sizes.abs(), [-2]).amax(-1)
    reach = torch.tensor([call.number(x) for x in REACH[call.dtype]], dtype=call.dtype)
    # Of the degrees below 18, the first one that reaches as far; NaN is beyond all.
    choice = torch.searchsorted(reach[:-1].contiguous(), norm)
    out = torch.empty(batch.shape, dtype=a.dtype)
    for i, degree in enumerate(_DEGREES):
        chosen = (choice == i).nonzero().squeeze(1)
        if chosen.numel():
            out[chosen] = degree(call, batch[chosen])
    chosen = (choice == len(_DEGREES)).nonzero().squeeze(1)
    if chosen.numel():
        out[chosen] = _squared(call, batch[chosen], norm[chosen], REACH[call.dtype][-1])
    return out.view(a.shape)


ROWS: tuple[Row, ...] = rows(
    "linalg_matrix_exp",
    matrix_exp,
    "the 1-norm, every product of matrices, the linear combinations of powers, the scaling; "
    "of float16 and bfloat16 in float32, where stock torch misreads its own coefficients",
)
