"""Arguments of every operation that has a row for complex operands."""

from __future__ import annotations

from typing import Any, Final

import torch


def z(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.complex64, generator=generator)


def x(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


A, B, C = z(6, 5), z(6, 5, seed=2), z(5, seed=3)
SCALE: Final = 0.375 - 1.25j
ROWS: Final = torch.tensor([0, 3, 3, 1, 0, 3])
PLACES: Final = torch.arange(30).view(6, 5) * 7 % 4
EVEN: Final = torch.arange(30).view(6, 5) % 2 == 0

Cases = dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]]

ARITHMETIC: Final[Cases] = {
    "add.Tensor": [
        ((A, C), {}),
        ((x(6, 5), A), {"alpha": SCALE}),
        ((A, 0.3), {}),
        ((x(5), 0.375 + 1j), {}),
    ],
    "add.Scalar": [((A, SCALE), {})],
    "sub.Tensor": [((A, B), {"alpha": 3}), ((A.mT, x(5, 6)), {})],
    "sub.Scalar": [((A, SCALE), {})],
    "rsub.Tensor": [((A, C), {})],
    "rsub.Scalar": [((A, SCALE), {})],
    "mul.Tensor": [((A, B.conj()), {}), ((A, x(5)), {}), ((A.mT, SCALE), {}), ((x(6), SCALE), {})],
    "mul.Scalar": [((A, SCALE), {})],
    "div.Tensor": [((A, B), {}), ((x(6, 5), C), {}), ((A, x(5)), {}), ((A, SCALE), {})],
    "div.Scalar": [((A, SCALE), {})],
    "div.Tensor_mode": [((A, B), {"rounding_mode": None})],
    "div.Scalar_mode": [((A, SCALE), {"rounding_mode": None})],
    "reciprocal.default": [((A,), {})],
    "square.default": [((A,), {})],
    "addcmul.default": [((A, B, C), {"value": SCALE})],
    "addcdiv.default": [((A, B, C), {})],
    "lerp.Scalar": [((A, B, w), {}) for w in (0.3, SCALE)],
    "lerp.Tensor": [((A, B, z(6, 5, seed=4) / 2), {}), ((A.mT, B.mT, SCALE / 4 * C[:1]), {})],
    "linalg_cross.default": [
        ((z(4, 3), z(4, 3, seed=2)), {}),
        ((z(3, 4), z(3, 4, seed=2)), {"dim": 0}),
    ],
    "mm.default": [((A, B.mH), {}), ((A, z(5, 300).contiguous()), {})],
    "bmm.default": [((z(3, 4, 5), z(3, 5, 2)), {})],
    "mv.default": [((A, C), {})],
    "dot.default": [((C, B[0]), {})],
    "vdot.default": [((C, B[0]), {})],
    "addmm.default": [
        ((z(3), z(2, 4), z(4, 3)), {"beta": SCALE, "alpha": 0.5}),
        ((z(3, 2).mT, z(2, 4), z(4, 3)), {}),
    ],
    "baddbmm.default": [((z(3), z(2, 2, 4), z(2, 4, 3)), {"beta": 0})],
    "addmv.default": [((z(6, seed=5), A, C), {"alpha": SCALE})],
    "addbmm.default": [
        ((z(2, 3), z(5, 2, 4), z(5, 4, 3)), {"beta": 2, "alpha": 3 - 1j}),
        ((z(3, 2).mT, z(1, 2, 4), z(1, 4, 3)), {}),
    ],
    "addr.default": [((A, A[:, 0], C), {"beta": 2, "alpha": 3 - 1j}), ((A.mT, C, A[:, 1]), {})],
}

FUNCTIONS: Final[Cases] = {
    "pow.Tensor_Scalar": [((A, e), {}) for e in (2, 3, -1, 0.5, 1.5)],
    "pow.Tensor_Tensor": [((A, B), {})],
    "pow.Scalar": [((1.5, A), {})],
    "polar.default": [((x(6, 5).abs(), x(5)), {})],
    "ldexp.Tensor": [((A, x(5)), {}), ((A.mT, x(6)), {})],
    "logaddexp.default": [((A, B), {}), ((A.mT, C[:, None]), {})],
    "silu.default": [((A,), {}), ((A.mT,), {})],
    "silu_backward.default": [((A, B), {})],
    "sigmoid_backward.default": [((A, B), {}), ((A.mT, B.mT), {})],
    "tanh_backward.default": [((A, B), {})],
}

REDUCTIONS: Final[Cases] = {
    "sum.default": [((A,), {})],
    "sum.dim_IntList": [((A, [0]), {}), ((A, [1], True), {})],
    "mean.default": [((A,), {})],
    "mean.dim": [((A, [1], True), {})],
    "cumsum.default": [((A, 1), {})],
    "trace.default": [((A,), {})],
    "linalg_vector_norm.default": [((A,), {}), ((A, 1, [0]), {}), ((A, 2, [1], True), {})],
    "norm.Scalar": [((A,), {})],
    "norm.ScalarOpt_dim": [((A, None, [0]), {}), ((A, 3, [1], True), {})],
    "dist.default": [((A, C), {}), ((A, B, 1), {})],
    "renorm.default": [((A, 2, 0, 0.5), {}), ((A.mT, 1, 1, 0.75), {})],
    **{
        f"{name}.correction": [((A,), {}), ((A, [0]), {"correction": 0.5, "keepdim": True})]
        for name in ("var", "std", "var_mean", "std_mean")
    },
    "prod.default": [((A[:2],), {})],
    "prod.dim_int": [((A, 1), {}), ((A.mT, 1, True), {})],
    "cumprod.default": [((A, 1), {}), ((A.mT, 1), {})],
    "logcumsumexp.default": [((A, 1), {}), ((A.mT, 0), {})],
    "_logcumsumexp.default": [((A, 1), {})],
    "logsumexp.default": [((A, [0]), {}), ((A.mT, [0, 1], True), {})],
}

PADS: Final[Cases] = {
    f"{kind}_pad{n}d_backward.default": [
        ((z(6, *[5] * n), z(6, *[3] * n, seed=2), [1] * (2 * n)), {})
    ]
    for kind in ("reflection", "replication")
    for n in (1, 2, 3)
}

INTO_PLACES: Final[Cases] = {
    "scatter_add.default": [((A, 0, PLACES, B), {}), ((A.mT, 1, PLACES.mT, B.mT), {})],
    "scatter.reduce": [
        ((A, 0, PLACES, B), {"reduce": "add"}),
        ((A, 0, PLACES[:3], B), {"reduce": "multiply"}),
    ],
    "scatter.value_reduce": [
        ((A, 0, PLACES, SCALE), {"reduce": "add"}),
        ((A, 0, PLACES, SCALE), {"reduce": "multiply"}),
    ],
    "scatter_reduce.two": [
        ((A, 0, PLACES, B, "sum"), {}),
        ((A, 0, PLACES, B, "mean"), {"include_self": False}),
        ((A, 0, PLACES[:3], B, "prod"), {}),
    ],
    "index_reduce.default": [((A, 0, ROWS, B, "mean"), {}), ((A, 0, ROWS, B, "prod"), {})],
    "index_add.default": [
        ((A, 0, ROWS, B), {}),
        ((A.mT, 1, ROWS, B.mT), {"alpha": SCALE}),
    ],
    **{
        f"{name}.default": [
            ((A, [ROWS], B, True), {}),
            ((A.mT, [None, ROWS], C[:, None], True), {}),
        ]
        for name in ("index_put", "_index_put_impl", "_unsafe_index_put")
    },
    "put.default": [
        ((z(2, 3), ROWS, A[:, 0], True), {}),
        ((z(2, 3).mT, ROWS - 4, B[:, 0], True), {}),
    ],
    "_unsafe_masked_index_put_accumulate.default": [
        ((A, EVEN, [ROWS[:, None], torch.arange(5)], B), {})
    ],
    "embedding_dense_backward.default": [
        ((A, ROWS, 4, -1, False), {}),
        ((A, ROWS, 5, 1, True), {}),
    ],
    "unfold_backward.default": [((z(4, 5, 3), [6, 5], 0, 3, 1), {})],
    "col2im.default": [((z(2, 4, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]), {})],
    "native_dropout_backward.default": [((A, EVEN, 1.375), {})],
    **PADS,
}

CASES: Final[Cases] = {**ARITHMETIC, **FUNCTIONS, **REDUCTIONS, **INTO_PLACES}
"""Arguments by row; what is missing takes one matrix."""
