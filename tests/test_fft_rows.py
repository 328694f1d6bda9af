"""Laws of the Fourier transforms: accuracy, noise, exactness, and what stock torch promises."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from scatter import between

import fuzzytorch as ft
from fuzzytorch.ops.fft import DIRECT, radices
from fuzzytorch.table import Verdict

LENGTHS: Final = (
    *range(1, 18), 25, 31, 49, 53, 59, 60, 64, 67, 81, 100, 106, 121, 128, 243, 256, 1000, 1009,
    2048,
)  # fmt: skip
"""Powers of two, of odd primes, mixed ones, and primes on both sides of the direct transform."""

assert any(max(radices(n), default=1) > DIRECT for n in LENGTHS)

TRANSFORMS: Final[dict[str, tuple[Callable[..., torch.Tensor], bool]]] = {
    "fft": (torch.fft.fft, True),
    "ifft": (torch.fft.ifft, True),
    "rfft": (torch.fft.rfft, False),
    "irfft": (torch.fft.irfft, True),
    "hfft": (torch.fft.hfft, True),
    "ihfft": (torch.fft.ihfft, False),
    "fft of real": (torch.fft.fft, False),
}
"""The function, and whether its input is complex."""


def normal(*shape: int, complex: bool = False, seed: int = 0) -> torch.Tensor:
    dtype = torch.complex64 if complex else torch.float32
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def wide(x: Any) -> Any:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def rms(x: torch.Tensor) -> float:
    return x.abs().square().mean().sqrt().item()


def transform(name: str, n: int) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    function, complex = TRANSFORMS[name]
    half = n // 2 + 1 if name in ("irfft", "hfft") else n
    x = normal(40, half, complex=complex, seed=n)
    return functools.partial(function, n=n), x


@pytest.mark.parametrize("n", [1, 2, 3, 12, 45, 64, 97, 1024, 1155, 2 * 59])
def test_factors_multiply_to_the_length_and_even_ones_come_last(n: int) -> None:
    product = 1
    for r in radices(n):
        product *= r
    assert product == n
    even = [r % 2 == 0 for r in radices(n)]
    assert even == sorted(even)


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("n", LENGTHS)
def test_nearest_rounding_deviates_from_binary64_as_stock_torch_does(name: str, n: int) -> None:
    if n == 1 and name in ("irfft", "hfft"):
        pytest.skip("a real output of one point needs no arithmetic")
    function, x = transform(name, n)
    stock, truth = function(x), function(wide(x))
    with ft.fuzzy("rn") as mode:
        y = function(x)
    assert (y.dtype, y.shape, y.stride()) == (stock.dtype, stock.shape, stock.stride())
    # Half an ulp more where a single rounding is the whole deviation of stock torch.
    assert rms(y - truth) <= 2 * rms(stock - truth) + 2.0**-25 * rms(truth)
    verdicts = {record.verdict for record in mode.coverage.records}
    assert verdicts <= {Verdict.ROUNDED, Verdict.LOWERED, Verdict.EXACT}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("n", [8, 12, 17, 60, 67, 100])
def test_binary64_transforms_round_in_their_own_format(name: str, n: int) -> None:
    function, x = transform(name, n)
    stock = function(wide(x))
    with ft.fuzzy("rn") as mode:
        y = function(wide(x))
    assert (y.dtype, y.shape, y.stride()) == (stock.dtype, stock.shape, stock.stride())
    eps = torch.finfo(torch.float64).eps
    stages = len(radices(n)) if max(radices(n)) <= DIRECT else 2 * len(radices(256)) + 3
    assert rms(y - stock) <= 2 * eps * stages * rms(stock)
    assert mode.coverage.share(Verdict.ROUNDED) == 1
    samples = []
    for seed in range(8):
        with ft.fuzzy("sr", seed=seed):
            samples.append(function(wide(x)))
    scatter = torch.stack(samples).std(0).square().mean().sqrt().item()
    assert 0 < scatter < 4 * eps * stages * rms(stock)


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("n", [8, 12, 17, 60, 67, 100])
def test_the_mean_in_stochastic_rounding_is_the_transform(name: str, n: int) -> None:
    function, x = transform(name, n)
    truth = function(wide(x))
    samples = []
    for seed in range(64):
        with ft.fuzzy("sr", seed=seed):
            samples.append(function(x))
    drawn = wide(torch.stack(samples))
    error = rms(drawn.mean(0) - truth)
    scatter = drawn.std(0).square().mean().sqrt().item()
    # Each stage multiplies by constants that are rounded to binary32, at most 2^-24 of
    # each; a convolution has two transforms and three products with constants.
    stages = len(radices(n)) if max(radices(n)) <= DIRECT else 2 * len(radices(256)) + 3
    assert 0 < scatter < 2.0**-20 * rms(truth)
    assert error <= 1.25 * scatter / 64**0.5 + 2.0**-24 * stages**0.5 * rms(truth)


@pytest.mark.parametrize("n", [3, 8, 17, 67, 100])
def test_every_inexact_element_scatters(n: int) -> None:
    x = normal(8, n, complex=True)
    samples = []
    for seed in range(64):
        with ft.fuzzy("sr", seed=seed):
            samples.append(torch.view_as_real(torch.fft.fft(x)))
    inexact = between(torch.view_as_real(torch.fft.fft(wide(x))))
    assert bool(inexact.any())
    assert bool((torch.stack(samples).std(0)[inexact] > 0).all())


@pytest.mark.parametrize("mode", ["sr", "cestac", "rn"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_integers_are_transformed_exactly_where_all_factors_are_units(mode: str, n: int) -> None:
    x = torch.complex(*torch.arange(-6.0, 6.0 * 8 - 6).view(2, -1)).view(-1, n)[:6]
    with ft.fuzzy(mode, seed=3):
        y, z = torch.fft.fft(x), torch.fft.fft(x.real)
    assert torch.equal(wide(y), torch.fft.fft(wide(x)))
    assert torch.equal(wide(z), torch.fft.fft(wide(x.real)))


@pytest.mark.parametrize("n", [2, 6, 9, 16, 67, 118])
def test_spectra_of_real_input_are_hermitian_to_the_bit(n: int) -> None:
    with ft.fuzzy("sr", seed=1):
        y, half = torch.fft.fft(normal(5, n)), torch.fft.rfft(normal(5, n))
    assert torch.equal(y[:, 1:].flip(1).conj().resolve_conj(), y[:, 1:])
    for z in (y, half):
        assert not z[:, 0].imag.any()
        assert n % 2 or not z[:, n // 2].imag.any()


CALLS: Final[dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "fft2": lambda x, z: torch.fft.fft2(z),
    "ifftn of two dimensions": lambda x, z: torch.fft.ifftn(z, dim=(0, 2), norm="ortho"),
    "rfftn": lambda x, z: torch.fft.rfftn(x),
    "rfft2, padded": lambda x, z: torch.fft.rfft2(x, s=(9, 4), norm="forward"),
    "irfftn": lambda x, z: torch.fft.irfftn(z),
    "irfftn, odd": lambda x, z: torch.fft.irfftn(z, s=(6, 7), dim=(1, 0)),
    "hfft2": lambda x, z: torch.fft.hfft2(z),
    "ihfftn": lambda x, z: torch.fft.ihfftn(x, norm="ortho"),
    "fftn of real": lambda x, z: torch.fft.fftn(x, dim=(2, 0)),
    "along the first": lambda x, z: torch.fft.fft(z, dim=0),
    "of a conjugate": lambda x, z: torch.fft.fft(z.conj().mT),
    "of a transpose": lambda x, z: torch.fft.rfft(x.mT),
    "stft": lambda x, z: torch.stft(x.flatten(), 16, return_complex=True, window=torch.ones(16)),
}
"""Transforms of ``x`` (real) and ``z`` (complex), both ``(4, 5, 6)``."""


@pytest.mark.parametrize("name", CALLS)
def test_transforms_of_several_dimensions_and_gradients_are_those_of_stock_torch(
    name: str,
) -> None:
    def run() -> list[torch.Tensor]:
        x, z = normal(4, 5, 6).requires_grad_(), normal(4, 5, 6, complex=True).requires_grad_()
        y = CALLS[name](x, z)
        weight = torch.linspace(0.5, 1.5, y.numel()).view(y.shape)
        loss = ((y.abs() if y.is_complex() else y) * weight).square().sum()
        return [
            y,
            *(g for g in torch.autograd.grad(loss, (x, z), allow_unused=True) if g is not None),
        ]

    stock = run()
    with ft.fuzzy("rn") as mode:
        ours = run()
    torch.testing.assert_close(ours, stock, rtol=1e-5, atol=2e-5 * float(stock[1].abs().max()))
    assert ours[0].stride() == stock[0].stride()
    records = [r for r in mode.coverage.records if "fft" in r.name]
    assert {r.verdict for r in records if r.operations} == {Verdict.ROUNDED}


def test_transforms_write_into_the_tensor_that_is_given() -> None:
    z, out = normal(3, 12, complex=True), torch.empty(0, dtype=torch.complex64)
    with ft.fuzzy("sr", seed=0) as mode:
        torch.fft.fft(z, out=out)
    torch.testing.assert_close(out, torch.fft.fft(z))
    assert mode.coverage.share(Verdict.ROUNDED) == 1


def test_an_invalid_transform_fails_as_in_stock_torch() -> None:
    for bad in (lambda: torch.fft.fft(normal(3), n=0), lambda: torch.fft.fft(normal(3), dim=4)):
        with pytest.raises((RuntimeError, IndexError)) as stock:
            bad()
        with ft.fuzzy("sr", seed=0), pytest.raises(stock.type) as ours:
            bad()
        assert str(ours.value) == str(stock.value)
