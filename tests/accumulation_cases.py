"""Calls for the rows that accumulate: harvested from PyTorch's OpInfo database, and written ones.

The samples of the database run forward and backward under a mode that records which
overloads arrive; each recorded call is a case for its row.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import itertools
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from accumulation_calls import WRITTEN
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fuzzytorch.table import Row, overload_named

OPERATIONS: Final = frozenset(
    [
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "addbmm",
        "mv",
        "addmv",
        "dot",
        "vdot",
        "addr",
        "trace",
        "cdist",
        "nn.functional.pdist",
        "nn.functional.conv1d",
        "nn.functional.conv2d",
        "nn.functional.conv3d",
        "nn.functional.conv_transpose1d",
        "nn.functional.conv_transpose2d",
        "nn.functional.conv_transpose3d",
        "sum",
        "mean",
        "nansum",
        "prod",
        "norm",
        "linalg.vector_norm",
        "dist",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "cumsum",
        "cumprod",
        "logsumexp",
        "logcumsumexp",
        "softmax",
        "log_softmax",
        "renorm",
        "native_layer_norm",
        "nn.functional.layer_norm",
        "nn.functional.group_norm",
        "native_batch_norm",
        "nn.functional.batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
        "nn.functional.instance_norm",
        "nn.functional.avg_pool2d",
        "nn.functional.avg_pool3d",
        "nn.functional.adaptive_avg_pool2d",
        "nn.functional.adaptive_avg_pool3d",
        "nn.functional.adaptive_max_pool2d",
        "nn.functional.adaptive_max_pool3d",
        "nn.functional.max_pool2d",
        "nn.functional.max_pool3d",
        "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d",
        "nn.functional.interpolate",
        "nn.functional.grid_sample",
        "grid_sampler_3d",
        "_upsample_bilinear2d_aa",
        "nn.functional.embedding_bag",
        "nn.functional.mse_loss",
        "nn.functional.binary_cross_entropy",
        "nn.functional.nll_loss",
        "nn.functional.cross_entropy",
        "nn.functional.linear_cross_entropy",
        "nn.functional.multi_margin_loss",
        "nn.functional.multilabel_margin_loss",
        "_segment_reduce",
        "histogram",
        "histogramdd",
        "matrix_exp",
    ]
)
"""Entries of the database that are run."""

SAMPLES: Final = 40
CASES: Final = 8
LARGEST: Final = 3000
"""Samples run per entry, different cases kept per row, elements of the tensors of a case."""


@dataclasses.dataclass(frozen=True, repr=False)
class Case:
    """One call of an overload; running it never touches its arguments."""

    overload: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, mode: AbstractContextManager[Any] | None = None) -> list[torch.Tensor]:
        """Every tensor that the call returns under a mode, then those that it writes."""
        args, kwargs = copy.deepcopy((self.args, self.kwargs))
        with mode or nullcontext():
            returned = self.overload(*args, **kwargs)
        schema = self.overload._schema
        written = [
            args[i]
            for i, a in enumerate(schema.arguments[: len(args)])
            if a.alias_info is not None and a.alias_info.is_write
        ]
        return [y for y in tree_leaves((returned, written)) if isinstance(y, torch.Tensor)]

    def changed(self, function: Callable[[Any], Any]) -> Case:
        """The case with a function applied to every argument and list element."""
        return Case(self.overload, *tree_map(function, (self.args, self.kwargs)))

    def in_binary64(self) -> list[torch.Tensor]:
        """What :meth:`run` gives when float32 is replaced by float64 everywhere."""
        return self.changed(_widened).run()

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments."""
        leaves = tree_leaves((self.args, self.kwargs))
        return [x for x in leaves if isinstance(x, torch.Tensor)]

    def __repr__(self) -> str:
        """What tells cases apart: everything but the values of tensors."""
        args, kwargs = tree_map(_shape, (self.args, self.kwargs))
        return f"{self.overload}{args}{kwargs or ''}"


def _shape(x: Any) -> Any:
    return tuple(x.shape) if isinstance(x, torch.Tensor) else x


def _widened(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.double() if x.dtype == torch.float32 else x
    return torch.float64 if x is torch.float32 else x


def _own(x: Any) -> Any:
    """A copy; numbers become those that float32 holds, so that binary64 computes with the same."""
    if isinstance(x, torch.Tensor):
        return x.detach().clone()
    return torch.tensor(x).item() if isinstance(x, float) else x


class _Recorder(TorchDispatchMode):
    def __init__(self, calls: dict[str, dict[str, Case]]) -> None:
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kept = self.calls[str(func)]
        case = Case(func, args, kwargs or {}).changed(_own)
        size = sum(x.numel() for x in case.tensors)
        dtypes = {x.dtype for x in case.tensors if x.is_floating_point()}
        dtypes.add(case.kwargs.get("dtype") or torch.float32)
        if len(kept) < CASES and 0 < size <= LARGEST and dtypes == {torch.float32}:
            kept.setdefault(repr(case), case)
        return func(*args, **(kwargs or {}))


@functools.cache
def harvested() -> dict[str, list[Case]]:
    """Cases by the name of the overload."""
    calls: dict[str, dict[str, Case]] = defaultdict(dict)
    torch.manual_seed(0)
    for info in op_db:
        if info.name not in OPERATIONS:
            continue
        samples = info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd)
        for sample in itertools.islice(samples, SAMPLES):
            with _Recorder(calls), warnings.catch_warnings():
                # Deprecations of the arguments that the database tries.
                warnings.simplefilter("ignore")
                result = info(sample.input, *sample.args, **sample.kwargs)
                for y in tree_leaves(result):
                    if isinstance(y, torch.Tensor) and y.requires_grad:
                        y.backward(torch.randn_like(y), retain_graph=True)
    return {name: list(kept.values()) for name, kept in calls.items()}


TYPED: Final = frozenset({"aten.norm.ScalarOpt_dtype", "aten.norm.ScalarOpt_dim_dtype"})
"""Overloads with a dtype that has no default."""


def _case(overload: Any, *args: Any, **options: Any) -> Case:
    named = args[-1] if isinstance(args[-1], dict) else {}
    return Case(overload, args[: len(args) - bool(named)], {**options, **named})


def cases_of(name: str) -> list[Case]:
    """All cases of a row."""
    overload = overload_named(name)
    options = {"dtype": torch.float32} if name in TYPED else {}
    written = [_case(overload, *args, **options) for args in WRITTEN.get(name, ())]
    return written + harvested().get(name, [])


def rows_of(*families: str) -> list[Row]:
    """The rows of families by the names of their modules."""
    modules = [importlib.import_module(f"fuzzytorch.ops.{name}") for name in families]
    return [row for module in modules for row in module.ROWS]
