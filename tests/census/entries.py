"""Entries of PyTorch's database of operations, their samples, and where values have no law."""

from __future__ import annotations

import dataclasses
import functools
import random
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

DTYPES: Final = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
"""The dtypes that rows compute in."""

NOT_HERE: Final = "jiterator"
"""In the name of operations that this hardware does not have."""

UNDEFINED: Final[Mapping[str, str]] = {
    "empty": "uninitialised memory",
    "empty_like": "uninitialised memory",
    "empty_permuted": "uninitialised memory",
    "empty_strided": "uninitialised memory",
    "new_empty": "uninitialised memory",
    "new_empty_strided": "uninitialised memory",
    "matrix_exp": "small elements of stock torch hold the error of the large ones",
    "linalg.pinv.singular": "the condition of the inputs exceeds that of the dtype",
}
"""Entries whose values rounding does not determine; all but these are still compared."""

GAUGED: Final[Mapping[str, str]] = {
    "linalg.eig": "eigenvectors are unique up to their scale only",
    "linalg.eigh": "eigenvectors are unique up to their sign only",
    "linalg.svd": "singular vectors are unique up to their sign only",
    "svd": "singular vectors are unique up to their sign only",
}
"""Entries of which only what the database says to be unique is compared, with its gradients."""


@dataclasses.dataclass(frozen=True, order=True)
class Entry:
    """An operation of the database in one dtype: the unit of work, and of the report."""

    name: str
    dtype_name: str

    def __str__(self) -> str:
        return f"{self.name}-{self.dtype_name}"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the inputs."""
        dtype: torch.dtype = getattr(torch, self.dtype_name)
        return dtype

    @property
    def info(self) -> Any:
        """The ``OpInfo``."""
        return _infos()[self.name]

    @property
    def differentiable(self) -> bool:
        """Whether the database says that torch differentiates it in this dtype."""
        return self.dtype in self.info.supported_backward_dtypes("cpu")


@functools.cache
def _infos() -> dict[str, Any]:
    return {full_name(info): info for info in op_db}


def full_name(info: Any) -> str:
    """The name of an ``OpInfo``, with that of its variant."""
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def entries(dtypes: tuple[str, ...] = DTYPES, name: str | None = None) -> list[Entry]:
    """All entries in some dtypes, in the order of the database, or those of one operation."""
    infos = _infos() if name is None else {name: _infos()[name]}
    return [
        Entry(name, dtype)
        for dtype in dtypes
        for name, info in infos.items()
        if getattr(torch, dtype) in info.supported_dtypes("cpu") and NOT_HERE not in name
    ]


def samples(entry: Entry, gradients: bool) -> list[Any]:
    """The samples of an entry, always the same ones; floating-point numbers are those of binary32.

    Torch converts a number to binary32 before it meets tensors of that or a narrower
    dtype, so that a computation in binary64 shall start from the converted one, too.
    """
    _seed(entry.name)
    found = list(entry.info.sample_inputs("cpu", entry.dtype, requires_grad=gradients))
    if entry.dtype not in (torch.float64, torch.complex128):
        for sample in found:
            sample.args, sample.kwargs = tree_map(_binary32, (sample.args, sample.kwargs))
    return found


def error_samples(entry: Entry) -> list[Any]:
    """Inputs that stock torch refuses; they do not depend on the dtype of the entry."""
    if entry.info.error_inputs_func is None:
        return []
    _seed(entry.name)
    return [error.sample_input for error in entry.info.error_inputs("cpu")]


def spread(entry: Entry, count: int, wanted: int | None) -> list[int]:
    """Numbers of ``wanted`` of ``count`` samples: by the name of the entry, all when ``None``."""
    if wanted is None or count <= wanted:
        return list(range(count))
    choice = random.Random(str(entry)).sample(range(count), wanted)
    return sorted(choice)


def _seed(name: str) -> None:
    seed = zlib.crc32(name.encode())
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def _binary32(x: Any) -> Any:
    # Beyond the range of binary32 a number stays what it is: torch refuses some of those.
    if type(x) is float and abs(x) < 2.0**127:
        return float(np.float32(x))
    return complex(np.complex64(x)) if type(x) is complex and abs(x) < 2.0**127 else x
