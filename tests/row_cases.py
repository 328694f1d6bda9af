"""Calls for the rows of elementwise and indexing families: real ones, harvested, and written ones.

The samples of PyTorch's OpInfo database run forward and backward under a mode that
records which overloads arrive; each recorded call is a case for its row.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import itertools
import warnings
from collections import defaultdict
from typing import Any, Final

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fuzzytorch.ops.polynomial import KINDS
from fuzzytorch.table import Row, overload_named

aten = torch.ops.aten

OPERATIONS: Final = (
    "acos acosh add addcdiv addcmul asin asinh atan atan2 atanh cos cosh cross deg2rad digamma div "
    "erf erfc erfinv exp exp2 expm1 floor_divide hypot i0 igamma igammac index_add index_put "
    "index_reduce index_select lerp lgamma linalg.cross log log10 log1p log2 logaddexp logaddexp2 "
    "logit masked.logaddexp mul mvlgamma native_dropout_backward nn.functional.celu "
    "nn.functional.elu nn.functional.embedding nn.functional.fold nn.functional.gelu "
    "nn.functional.glu nn.functional.hardsigmoid nn.functional.hardswish "
    "nn.functional.leaky_relu nn.functional.logsigmoid nn.functional.mish nn.functional.pad "
    "nn.functional.poisson_nll_loss nn.functional.prelu nn.functional.rrelu nn.functional.selu "
    "nn.functional.silu nn.functional.softplus nn.functional.softshrink nn.functional.unfold "
    "polygamma pow put rad2deg reciprocal remainder round rsqrt __rsub__ rsub scatter_add "
    "scatter_reduce sigmoid sin sinc sinh sqrt square sub take take_along_dim tan tanh "
    "true_divide unfold xlogy "
    "polar fft.rfft cholesky cholesky_inverse cholesky_solve geqrf ormqr triangular_solve "
    "linalg.cholesky_ex linalg.det linalg.householder_product linalg.inv_ex linalg.lstsq "
    "linalg.eigh linalg.ldl_factor linalg.ldl_solve linalg.lu linalg.lu_factor linalg.lu_solve "
    "linalg.qr linalg.slogdet linalg.solve linalg.solve_triangular linalg.svd"
)
"""OpInfo entries that are run, and all entries named ``special...``."""

SAMPLES: Final = 8
CASES: Final = 4
LARGEST: Final = 2000
"""Samples run per entry, cases kept per row, elements of the tensors of a case."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of an overload; running it never touches its arguments."""

    overload: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> list[torch.Tensor]:
        """The tensors that the call returns, or where there are none, those that it writes."""
        args, kwargs = copy.deepcopy((self.args, self.kwargs))
        torch.manual_seed(5)
        returned = self.overload(*args, **kwargs)
        if returned is None:
            schema = self.overload._schema.arguments
            returned = [
                x
                for x, a in zip(args, schema, strict=False)
                if a.alias_info is not None and a.alias_info.is_write
            ]
        return [y for y in tree_leaves(returned) if isinstance(y, torch.Tensor)]

    def in_binary64(self) -> list[torch.Tensor]:
        """What :meth:`run` gives when every float32 tensor is widened."""
        wide = tree_map(_widened, (self.args, self.kwargs))
        return Case(self.overload, *wide).run()

    @property
    def elements(self) -> int:
        """Elements of all tensors among the arguments."""
        leaves = tree_leaves((self.args, self.kwargs))
        return sum(x.numel() for x in leaves if isinstance(x, torch.Tensor))


def _widened(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.dtype == torch.float32 else x


def _binary32(x: Any) -> Any:
    """Numbers that float32 holds, so that binary64 computes with the same ones."""
    return torch.tensor(x).item() if isinstance(x, float) else x


class _Recorder(TorchDispatchMode):
    def __init__(self, calls: dict[str, list[Case]]) -> None:
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kept = self.calls[str(func)]
        kwargs = kwargs or {}
        if len(kept) < CASES:
            own = tree_map(_own, (args, kwargs))
            case = Case(func, *own)
            floats = [x.dtype for x in tree_leaves(own) if isinstance(x, torch.Tensor)]
            if 0 < case.elements <= LARGEST and torch.float32 in floats:
                kept.append(case)
        return func(*args, **kwargs)


def _own(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, torch.Tensor) else _binary32(x)


@functools.cache
def harvested() -> dict[str, list[Case]]:
    """Cases by the name of the overload."""
    calls: dict[str, list[Case]] = defaultdict(list)
    torch.manual_seed(0)
    for info in op_db:
        if info.name not in OPERATIONS.split() and not info.name.startswith("special"):
            continue
        samples = info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd)
        for sample in itertools.islice(samples, SAMPLES):
            with _Recorder(calls), warnings.catch_warnings():
                # Deprecations of the arguments that the database tries.
                warnings.simplefilter("ignore")
                y = info(sample.input, *sample.args, **sample.kwargs)
                if isinstance(y, torch.Tensor) and y.requires_grad:
                    y.backward(torch.randn_like(y))
    return dict(calls)


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _index(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(high))


def _adam(lr: Any, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    state = [[_x(64)], [_x(64) * 0.5], [_x(64) * 0.1], [_x(64).square()], [_x(64).square() + 0.1]]
    numbers = {"beta1": 0.5, "beta2": 0.75, "weight_decay": 0.25, "eps": 2.0**-20}
    options = {"amsgrad": True, "maximize": False, **options}
    if not options["amsgrad"]:
        state[4] = []
    return (*state, [torch.tensor(3.0)]), {"lr": lr, **numbers, **options}


def _sgd(lr: Any, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    numbers = {"weight_decay": 0.25, "momentum": 0.75, "lr": lr, "dampening": 0.125}
    flags = {"nesterov": True, "maximize": False, "is_first_step": False}
    return ([_x(64)], [_x(64) * 0.5], [_x(64) * 0.1]), {**numbers, **flags, **options}


def _adagrad(lr: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    numbers = {"lr": lr, "lr_decay": 0.25, "weight_decay": 0.25, "eps": 2.0**-20}
    state = ([_x(64)], [_x(64) * 0.5], [_x(64).square()], [torch.tensor(3.0)])
    return state, {**numbers, "maximize": True}


RATE: Final = 0.125

WRITTEN: Final[dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "aten._fused_adam_.default": [_adam(RATE), _adam(RATE, amsgrad=False, maximize=True)],
    "aten._fused_adam_.tensor_lr": [_adam(torch.tensor(RATE))],
    "aten._fused_adamw_.default": [_adam(RATE)],
    "aten._fused_adamw_.tensor_lr": [_adam(torch.tensor(RATE), amsgrad=False)],
    "aten._fused_sgd_.default": [_sgd(RATE), _sgd(RATE, is_first_step=True, maximize=True)],
    "aten._fused_sgd_.tensor_lr": [_sgd(torch.tensor(RATE), nesterov=False)],
    "aten._fused_adagrad_.default": [_adagrad(RATE)],
    "aten._fused_adagrad_.tensor_lr": [_adagrad(torch.tensor(RATE))],
    "aten._cholesky_solve_helper.default": [((_x(3, 2), _x(3, 3), False), {})],
    "aten._amp_update_scale_.default": [
        ((torch.tensor(8.0), torch.tensor(3).int(), torch.tensor(0.0), 2.0, 0.5, 4), {})
    ],
    "aten.linalg_pinv.atol_rtol_tensor": [((_x(4, 3),), {})],
    "aten.bincount.default": [((_index(5, 40), _x(40).abs()), {})],
    "aten.scatter.reduce": [
        ((_x(5, 4), 0, _index(5, 6, 3), _x(7, 4)), {"reduce": "add"}),
        ((_x(5, 4), 0, _index(5, 6, 3), _x(7, 4)), {"reduce": "multiply"}),
    ],
    "aten.scatter.value_reduce": [
        ((_x(5, 4), 1, _index(4, 5, 6), 0.375), {"reduce": "add"}),
        ((_x(5, 4), 1, _index(4, 5, 6), 1.375), {"reduce": "multiply"}),
    ],
    "aten._index_put_impl.default": [((_x(5, 4), [_index(5, 9)], _x(9, 4), True), {})],
    "aten._index_put_impl_.default": [
        ((_x(5, 4), [_index(5, 9)], _x(9, 4), True), {}),
        ((_x(5, 4), [None, _index(4, 9)], _x(5, 9), True), {}),
        ((_x(5, 4), [_index(5, 9), _index(4, 9)], _x(9), True), {}),
    ],
    "aten._unsafe_index_put.default": [((_x(5, 4), [_index(5, 9)], _x(4), True), {})],
    "aten.put.default": [((_x(5, 4), _index(20, 30) - 20, _x(30), True), {})],
    "aten.index_add.default": [
        ((_x(5, 4, 3), 1, _index(4, 9), _x(5, 9, 3)), {}),
        ((_x(5, 4, 3), -1, _index(3, 9), _x(5, 4, 9)), {"alpha": 0.375}),
    ],
    "aten.embedding_dense_backward.default": [
        ((_x(30, 4), _index(6, 30), 6, -1, False), {}),
        ((_x(3, 10, 4), _index(6, 3, 10), 6, 2, True), {}),
    ],
    "aten.unfold_backward.default": [((_x(3, 4, 5), [3, 11], 1, 5, 2), {})],
    "aten.native_dropout.default": [((_x(64), 0.25, True), {})],
    "aten.rrelu_with_noise.default": [((_x(64), torch.empty(64)), {})],
    "aten.rrelu_with_noise_.default": [((_x(64), torch.empty(64)), {})],
    "aten.col2im.default": [
        ((_x(2, 12, 9), [5, 5], [2, 2], [1, 1], [1, 1], [2, 2]), {}),
        ((_x(12, 12), [4, 5], [2, 2], [1, 1], [0, 0], [1, 1]), {}),
    ],
    "aten.rsub.Scalar": [((_x(64), 0.375, 1.5), {})],
    "aten.remainder.Scalar": [((_x(64), -0.375), {})],
    "aten.selu.default": [((_x(64),), {})],
    "aten.square.default": [((_x(64),), {})],
    "aten.add.Tensor": [((_x(8, 8), _x(8)), {"alpha": 0.375}), ((_x(64), 0.375), {})],
    "aten.sub.Tensor": [((_x(8, 8), _x(8)), {"alpha": 0.375}), ((_x(64), 0.375), {})],
    "aten.lerp.Scalar": [((_x(64), _x(8, 64), 0.25), {}), ((_x(64), _x(8, 64), 0.75), {})],
    "aten.pow.Tensor_Scalar": [
        ((_x(64).abs() + 0.1, exponent), {})
        for exponent in (0, 1, 2, 3, 0.5, -0.5, -1, -2, 1.75, -3)
    ],
    "aten.div.Scalar_mode": [
        ((_x(64), 0.375), {"rounding_mode": mode}) for mode in (None, "trunc", "floor")
    ],
    "aten.floor_divide.Scalar": [((_x(64), -0.375), {})],
    "aten.remainder.Scalar_Tensor": [((2.5, _x(64)), {})],
    "aten.special_xlog1py.self_scalar": [((0.375, _x(64).abs()), {})],
    "aten.special_xlog1py.other_scalar": [((_x(64), 0.375), {})],
    "aten.igamma.default": [((_x(64).abs() + 0.1, _x(8, 64).abs()), {})],
    "aten.igammac.default": [((_x(64).abs() + 0.1, _x(8, 64).abs()), {})],
    "aten.special_zeta.default": [((_x(64).abs() + 2, _x(8, 64).abs() + 1), {})],
    "aten.special_zeta.self_scalar": [((2.5, _x(64).abs() + 1), {})],
    "aten.special_zeta.other_scalar": [((_x(64).abs() + 2, 1.5), {})],
    **{
        f"aten.special_{name}.{overload}": [(operands, {})]
        for name in KINDS
        for overload, operands in {
            "x_scalar": (0.375, torch.arange(-1.0, 20.0)),
            "n_scalar": (_x(64), 7),
        }.items()
    },
    "aten.xlogy.Scalar_Self": [((0.375, _x(64).abs()), {})],
    "aten.xlogy.Scalar_Other": [((_x(64), 0.375), {})],
    **{
        f"aten.{kind}_pad{n}d_backward.default": [
            ((_x(2, *[8] * n), _x(2, *[4] * n), [2] * (2 * n)), {})
        ]
        for kind in ("reflection", "replication")
        for n in (1, 2, 3)
    },
}
"""Calls that the database does not make, or not with overlaps: ``(args, kwargs)`` by name."""


def cases_of(name: str) -> list[Case]:
    """All cases of a row; never empty for a row of these families."""
    overload = overload_named(name)
    written = [Case(overload, *own) for own in WRITTEN.get(name, ())]
    return written + harvested().get(name, [])[: CASES - min(len(written), CASES - 1)]


def rows_of(*families: str) -> list[Row]:
    """The rows of families by the names of their modules."""
    modules = [importlib.import_module(f"fuzzytorch.ops.{name}") for name in families]
    return [row for module in modules for row in module.ROWS]
