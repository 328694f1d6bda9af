"""Tensors that rows and kernels meet rarely: integers, no elements, no numbers, other layouts.

What a mode does not perturb it passes on unchanged, and says so.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings

import pytest
import torch
from census.entries import GAUGED, UNDEFINED, full_name
from torch._prims_common import check_significant_strides
from torch.nn import functional as F
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

import fuzzytorch as ft
from fuzzytorch.table import Verdict


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def call(op, sample):
    """The tensors that an operation of the database returns, from copies of its inputs."""
    copies = tree_map(
        lambda x: x.clone() if isinstance(x, torch.Tensor) else x,
        (sample.input, sample.args, sample.kwargs),
    )
    torch.manual_seed(0)
    result = op(copies[0], *copies[1], **copies[2])
    return [y for y in tree_leaves(result) if isinstance(y, torch.Tensor)]


def first_sample(op, dtype):
    try:
        return next(iter(op.sample_inputs("cpu", dtype)))
    except (RuntimeError, ValueError, StopIteration) as error:
        pytest.skip(f"the database has no inputs here: {error}")


def both(op, dtype, mode):
    """What a mode and what stock torch make of the first sample of an operation."""
    sample = first_sample(op, dtype)
    try:
        stock = call(op, sample)
    except RuntimeError:
        pytest.skip("stock torch cannot compute this sample")
    with ft.fuzzy(mode, seed=0):
        return call(op, sample), stock


def with_dtype(*dtypes):
    cases = [
        pytest.param(op, dtype, id=f"{full_name(op)}-{dtype}".replace("torch.", ""))
        for op in op_db
        for dtype in dtypes
        if dtype in op.dtypes and "jiterator" not in op.name
    ]
    assert cases
    return pytest.mark.parametrize(("op", "dtype"), cases)


INTEGERS = (torch.uint8, torch.bool, torch.int64)


@pytest.mark.filterwarnings("ignore")
@with_dtype(*INTEGERS, torch.complex64)
def test_integers_and_complex_numbers_give_what_stock_torch_gives(op, dtype):
    ours, stock = both(op, dtype, "rn")
    for a, b in zip(ours, stock, strict=True):
        assert (a.dtype, a.shape, a.layout) == (b.dtype, b.shape, b.layout)
        if full_name(op) not in {*UNDEFINED, *GAUGED}:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, equal_nan=True)


@pytest.mark.filterwarnings("ignore")
@with_dtype(torch.bfloat16, torch.float16)
def test_results_of_16_bit_operands_have_the_dtype_of_stock_torch(op, dtype):
    ours, stock = both(op, dtype, "sr")
    assert [(y.dtype, y.shape) for y in ours] == [(y.dtype, y.shape) for y in stock]


def test_the_sigmoid_of_bytes_is_that_of_their_values():
    n = torch.arange(256, dtype=torch.uint8)
    with ft.fuzzy("rn", seed=0) as mode:
        ours = n.sigmoid()
    torch.testing.assert_close(ours, n.sigmoid())
    assert mode.coverage.share(Verdict.ROUNDED) == 1


@pytest.mark.parametrize("function", [torch.special.bessel_j0, torch.special.i1, torch.digamma])
def test_a_coarse_function_of_integers_is_rounded(function):
    n = torch.arange(1, 60)
    samples = set()
    for seed in range(8):
        with ft.fuzzy("sr", seed=seed):
            samples.add(tuple(function(n).tolist()))
    assert len(samples) > 1


@pytest.mark.filterwarnings("ignore:.*runs without perturbation.*:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_integers_become_floats_of_the_default_dtype(dtype):
    n = torch.arange(1, 9)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        stock = [n / 3, n.sigmoid(), n.sqrt(), torch.special.i1(n)]
        with ft.fuzzy("rn", seed=0):
            ours = [n / 3, n.sigmoid(), n.sqrt(), torch.special.i1(n)]
    finally:
        torch.set_default_dtype(default)
    for a, b in zip(ours, stock, strict=True):
        assert a.dtype == b.dtype == dtype
        torch.testing.assert_close(a, b)


def test_no_occurrences_are_counted_in_integers_also_with_weights():
    none = torch.empty(0, dtype=torch.int64)
    with ft.fuzzy("sr", seed=0):
        counts = torch.bincount(none, weights=torch.empty(0), minlength=3)
    assert torch.equal(counts, torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0,), (2, 0, 3)])
def test_additions_into_places_without_elements_change_nothing(shape):
    x, n = torch.zeros(shape), shape[0]
    index = torch.zeros(n, dtype=torch.int64)
    with ft.fuzzy("sr", seed=0):
        results = [
            x.index_add(0, index, x),
            x.index_put((index,), x, accumulate=True),
            x.scatter_add(0, torch.zeros(shape, dtype=torch.int64), x),
            x.index_reduce(0, index, x, "prod"),
        ]
    assert all(y.shape == shape for y in results)


META = {
    "product": lambda x: x @ x.T,
    "sigmoid": torch.sigmoid,
    "sum": lambda x: x.sum(0),
    "in place": lambda x: x.add_(1),
    "to bfloat16": lambda x: x.to(torch.bfloat16),
    "to integers": lambda x: x.int(),
    "copy": lambda x: torch.empty(3, 4, device="meta", dtype=torch.float16).copy_(x),
    "convolution": lambda x: F.conv1d(x[None], torch.empty(2, 3, 3, device="meta")),
    "bessel": torch.special.bessel_j0,
}


@pytest.mark.parametrize("name", META)
def test_tensors_without_numbers_have_the_shape_and_dtype_of_stock_torch(name):
    def compute():
        y = META[name](torch.empty(3, 4, device="meta"))
        return y.shape, y.dtype, y.stride(), y.device

    stock = compute()
    with ft.fuzzy("sr", seed=0):
        assert compute() == stock


LAYOUTS = {
    "coo": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[1]]),
}


@pytest.mark.filterwarnings("ignore:.*(beta|prototype).*:UserWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_conversion_of_another_layout_is_that_of_stock_torch_and_uncovered(layout):
    x = LAYOUTS[layout](randn(4, 4).relu())
    with (
        ft.fuzzy("sr", seed=0) as mode,
        pytest.warns(UserWarning, match=r"_to_copy.*(layout|nest)"),
    ):
        y = x.to(torch.bfloat16)
    for a, b in zip(
        y.unbind() if x.is_nested else [y.to_dense()],
        x.unbind() if x.is_nested else [x.to_dense()],
        strict=True,
    ):
        assert torch.equal(a, b.to(torch.bfloat16))
    assert mode.coverage.share(Verdict.UNCOVERED) == 1


WITHOUT_ROWS = {"bsr": lambda x: x.to_sparse_bsr((2, 2)), "nested": LAYOUTS["nested"]}


@pytest.mark.filterwarnings("ignore:.*(beta|prototype).*:UserWarning")
@pytest.mark.parametrize("layout", WITHOUT_ROWS)
def test_an_operation_in_place_on_another_layout_is_that_of_stock_torch(layout):
    def compute():
        x = WITHOUT_ROWS[layout](randn(4, 4).relu()).clone()
        x.tanh_()
        return x.unbind() if x.is_nested else [x.to_dense()]

    stock = compute()
    with ft.fuzzy("sr", seed=0), pytest.warns(UserWarning, match="tanh_.*without perturbation"):
        ours = compute()
    assert all(torch.equal(a, b) for a, b in zip(ours, stock, strict=True))


def test_building_a_sparse_tensor_is_exact():
    index = torch.tensor([[0, 1], [1, 0]])
    with warnings.catch_warnings(), ft.fuzzy("sr", seed=0, strict=True) as mode:
        warnings.simplefilter("error")
        x = torch.sparse_coo_tensor(
            index, torch.tensor([0.1, 0.2]), (2, 2), is_coalesced=True, check_invariants=True
        )
        assert torch.equal(x.to_dense(), torch.tensor([[0, 0.1], [0.2, 0]]))
    assert mode.coverage.operations == 0


def test_a_quantized_tensor_is_refused_as_in_stock_torch():
    with pytest.warns(UserWarning, match="deprecated"):
        x = torch.quantize_per_tensor(randn(3, 3), 0.1, 0, torch.qint8)
    with pytest.raises(RuntimeError, match="quantized") as stock:
        x.to(torch.bfloat16)
    with ft.fuzzy("sr", seed=0), pytest.raises(RuntimeError) as ours:
        x.to(torch.bfloat16)
    assert str(ours.value) == str(stock.value)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_large_unsigned_integers_are_rounded_to_16_bits(dtype):
    n = torch.tensor([1, 257, 65535]).to(dtype)
    with ft.fuzzy("up", seed=0):
        y = n.to(torch.bfloat16)
    assert y.tolist() == [1.0, 258.0, 65536.0]


CONJUGATE = {
    "pseudo-inverse": torch.linalg.pinv,
    "product": lambda a: a.conj() @ a.mT,
    "solution": lambda a: torch.linalg.solve(a[:3].mH, a[:3].conj()),
    "dot product": lambda a: torch.vdot(a[0].conj(), a[1]),
    "product of several": lambda a: torch.linalg.multi_dot([a.mH, a, a.mH]),
    "imaginary parts": lambda a: a.conj().imag.softmax(0),
}


@pytest.mark.filterwarnings("ignore:.*runs without perturbation.*:UserWarning")
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", CONJUGATE)
def test_conjugates_that_are_not_written_out_are_read_as_in_stock_torch(name, inference):
    a = randn(4, 3, dtype=torch.complex64)
    stock = CONJUGATE[name](a)
    with torch.inference_mode(inference), ft.fuzzy("rn", seed=0):
        ours = CONJUGATE[name](a)
    torch.testing.assert_close(ours, stock)


PERMUTED = {
    "transposed": randn(5, 4).t(),
    "sequence of channels": randn(2, 3, 4).transpose(1, 2),
    "reversed": randn(2, 3, 4, 5).permute(3, 2, 1, 0),
    "channels last": randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "every second line": randn(2, 3, 8, 5)[:, :, ::2],
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("layout", PERMUTED)
def test_batch_normalization_allocates_as_stock_torch_does(layout, training):
    def compute():
        x = PERMUTED[layout].detach().requires_grad_()
        channels = x.shape[1]
        y = F.batch_norm(x, torch.zeros(channels), torch.ones(channels), training=training)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        return y.detach(), gradient

    stock = compute()
    with ft.fuzzy("rn", seed=0):
        ours = compute()
    for a, b in zip(ours, stock, strict=True):
        assert check_significant_strides(a, b)[0], (a.stride(), b.stride())
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("layout", PERMUTED)
@pytest.mark.parametrize(
    "function", [lambda x: 2.0**x, lambda x: 1.0**x, lambda x: x.renorm(2, 0, 1.0)]
)
def test_operations_that_stock_torch_makes_contiguous_are_contiguous(function, layout):
    x = PERMUTED[layout]
    with ft.fuzzy("sr", seed=0):
        y = function(x)
    assert check_significant_strides(y, function(x))[0]


@pytest.mark.filterwarnings("ignore:.*prototype.*:UserWarning")
def test_a_transformer_with_padding_is_that_of_stock_torch():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x, padding = randn(2, 5, 16), torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]]).bool()
    with torch.no_grad():
        stock = model(x, src_key_padding_mask=padding)
        with ft.fuzzy("sr", seed=0, strict=True) as mode:
            ours = model(x, src_key_padding_mask=padding)
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-4)
    # Per layer: 7 tokens times the weights, and the two products of attention.
    products = 2 * 7 * (3 * 16 * 16 + 16 * 16 + 2 * 16 * 32) + 4 * 16 * (4**2 + 3**2)
    counted = {r.name.split(".")[1]: r.operations for r in mode.coverage.records}
    biases = 2 * 7 * (16 + 32 + 16)
    assert (
        sum(counted[n] for n in ("mm", "addmm", "_addmm_activation", "bmm"))
        == 2 * products + biases
    )
    assert mode.coverage.share(Verdict.ROUNDED) == 1


@pytest.mark.parametrize("delay", [0.01, 0.03, 0.1])
def test_an_interruption_leaves_nothing_switched_on_and_the_next_run_right(delay):
    x = randn(700, 700)

    def compute():
        with ft.fuzzy("sr", seed=0):
            return torch.mm(x[:90], x)

    expected = compute()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt():
        time.sleep(delay)
        signal.pthread_kill(main, signal.SIGINT)

    def compute_on():
        with ft.fuzzy("sr", seed=1):
            while True:
                torch.mm(x, x).sigmoid_().sum()

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        compute_on()
    interrupter.join()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.equal(compute(), expected)


def test_a_hook_that_raises_leaves_nothing_switched_on():
    def refuse(gradient):
        raise ValueError("refused")

    x = torch.ones(3, requires_grad=True)

    def differentiate():
        with ft.fuzzy("sr", seed=0):
            y = x * 0.1
            y.register_hook(refuse)
            y.sum().backward()

    with pytest.raises(ValueError, match="refused"):
        differentiate()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.equal(x * 0.1, torch.full((3,), 0.1))


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two processors")
def test_modes_on_two_threads_at_once_give_the_bits_of_one_after_the_other():
    x = randn(200, 200)

    def compute(seed):
        with ft.fuzzy("sr", seed=seed):
            return [(x @ x).sigmoid().sum(0) for _ in range(5)]

    expected = [compute(0), compute(1)]
    results = {}
    threads = [
        threading.Thread(target=lambda seed=seed: results.update({seed: compute(seed)}))
        for seed in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in (0, 1):
        assert all(torch.equal(a, b) for a, b in zip(results[seed], expected[seed], strict=True))
