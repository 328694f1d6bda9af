"""Laws over PyTorch's own database of operations: in ``rn`` they are those of stock torch.

Values agree within the error of reordered arithmetic in their dtype; dtypes, shapes and strides
agree exactly, forward and backward.
"""

from __future__ import annotations

import pytest
import torch
from torch._prims_common import check_significant_strides
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

import fuzzytorch as ft

SAMPLES = {torch.float32: 3, torch.float64: 1}
TOLERANCE = {
    torch.float32: {"rtol": 1e-3, "atol": 1e-4},
    torch.float64: {"rtol": 1e-9, "atol": 1e-11},
}

UNDEFINED = {
    "empty": "uninitialised memory",
    "empty_like": "uninitialised memory",
    "empty_permuted": "uninitialised memory",
    "empty_strided": "uninitialised memory",
    "new_empty": "uninitialised memory",
    "new_empty_strided": "uninitialised memory",
    "linalg.eig": "eigenvectors are unique up to their scale only",
    "matrix_exp": "small elements of stock torch hold the error of the large ones",
    "linalg.pinv.singular": "the condition of the inputs exceeds that of the dtype",
}
"""Operations whose values rounding does not determine; all but these are still compared."""

COLUMN_MAJOR = {"linalg.lstsq", "linalg.lstsq.grad_oriented", "ormqr"}
"""Results of LAPACK, which stock torch returns in the strides of its work space."""

FORWARD = [
    (op, dtype)
    for dtype in SAMPLES
    for op in op_db
    if dtype in op.dtypes and "jiterator" not in op.name
]
BACKWARD = [(op, dtype) for op, dtype in FORWARD if op.supports_autograd]


def full_name(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def name_of(value):
    return full_name(value) if hasattr(value, "sample_inputs") else str(value).split(".")[1]


def samples(op, dtype, requires_grad):
    try:
        found = list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    except (RuntimeError, ValueError) as error:
        pytest.skip(f"the database has no inputs here: {error}")
    return found[: SAMPLES[dtype]]


def fresh(tree, leaves):
    """A copy of the arguments; those that require a gradient are appended to ``leaves``."""

    def copy(x):
        if not isinstance(x, torch.Tensor):
            return x
        y = x.detach().clone(memory_format=torch.preserve_format)
        if x.requires_grad:
            leaves.append(y.requires_grad_())
        return y

    return tree_map(copy, tree)


def forward(op, sample):
    arguments, args, kwargs = fresh((sample.input, sample.args, sample.kwargs), [])
    torch.manual_seed(0)
    return [y for y in tree_leaves(op(arguments, *args, **kwargs)) if isinstance(y, torch.Tensor)]


def backward(op, sample):
    leaves = []
    arguments, args, kwargs = fresh((sample.input, sample.args, sample.kwargs), leaves)
    torch.manual_seed(0)
    outputs = [
        y
        for y in tree_leaves(sample.output_process_fn_grad(op(arguments, *args, **kwargs)))
        if isinstance(y, torch.Tensor) and y.requires_grad
    ]
    if not outputs or not leaves:
        return []
    weights = [torch.linspace(0.1, 1, y.numel()).to(y.dtype).reshape(y.shape) for y in outputs]
    gradients = torch.autograd.grad(outputs, leaves, weights, allow_unused=True)
    return [g for g in gradients if g is not None]


def check(op, sample, run, dtype):
    try:
        stock = run(op, sample)
    except RuntimeError:
        return  # stock torch cannot differentiate or compute this sample
    with ft.fuzzy("rn", seed=0):
        ours = run(op, sample)
    assert len(ours) == len(stock)
    for a, b in zip(ours, stock, strict=True):
        assert (a.dtype, a.shape, a.layout) == (b.dtype, b.shape, b.layout)
        if a.layout is torch.strided and full_name(op) not in COLUMN_MAJOR:
            assert check_significant_strides(a, b)[0], (a.shape, a.stride(), b.stride())
        if full_name(op) not in UNDEFINED:
            torch.testing.assert_close(a, b, **TOLERANCE[dtype], equal_nan=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "dtype"), FORWARD, ids=name_of)
def test_an_operation_is_that_of_stock_torch(op, dtype):
    for sample in samples(op, dtype, requires_grad=False):
        check(op, sample, forward, dtype)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "dtype"), BACKWARD, ids=name_of)
def test_a_gradient_is_that_of_stock_torch(op, dtype):
    for sample in samples(op, dtype, requires_grad=True):
        check(op, sample, backward, dtype)
