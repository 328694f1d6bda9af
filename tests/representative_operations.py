"""Representative operations of every family, at any size: what laws on whole calls run over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional as F

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        family: the file of rows that holds its overload.
        name: how tests call it.
        shapes: ``shapes(n)`` gives the shapes of its operands at size ``n``.
        run: ``run(*operands)`` gives one float32 tensor.
        batched: how many operands, the first ones, have the batch as dimension 0; the result
            has it, too.  0 where the result mixes the elements of a batch.
        single: whether every element is the result of one rounded operation.
    """

    family: str
    name: str
    shapes: Callable[[int], tuple[Shape, ...]]
    run: Callable[..., torch.Tensor]
    batched: int = 1
    single: bool = False

    def __str__(self) -> str:
        return self.name

    def operands(self, n: int) -> tuple[torch.Tensor, ...]:
        """Positive operands with all their bits, which depend on nothing but the size."""
        generator = torch.Generator().manual_seed(n)
        uniform = [torch.rand((2, *s), generator=generator) for s in self.shapes(n)]
        # Uniform numbers are multiples of 2^-24, whose sums and differences are exact.
        return tuple((u[0] + 0.25) * (u[1] + 0.5) for u in uniform)


def _gradient(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The gradient with respect to the first operand of ``function`` of all but the last one."""

    def run(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x, *others[:-1]), x, others[-1])[0]

    return run


def _step(weight: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    parameter = torch.nn.Parameter(weight.clone())
    parameter.grad = grad
    torch.optim.Adam([parameter], lr=0.1, weight_decay=0.1).step()
    return parameter.detach()


def _third(x: torch.Tensor) -> torch.Tensor:
    # A division that torch does not see: what is rounded is the conversion alone.
    return torch.from_numpy(x.detach().numpy().astype(np.float64) / 3).float()


with torch.random.fork_rng():
    torch.manual_seed(0)
    _ENCODER: Final = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    _LSTM: Final = torch.nn.LSTM(5, 3, batch_first=True)


def _encoded(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return _ENCODER(x)


def _remembered(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return _LSTM(x)[0]


def _transcribed(x: torch.Tensor) -> torch.Tensor:
    targets, lengths = torch.tensor([[1, 2, 2]] * len(x)), ([5] * len(x), [3] * len(x))
    return F.ctc_loss(-x.movedim(0, 1), targets, *lengths, reduction="none")


def _legendre(x: torch.Tensor) -> torch.Tensor:
    return torch.special.legendre_polynomial_p(x, 5)


def _index(n: int, rows: int) -> torch.Tensor:
    return torch.arange(n) * 5 % rows


def _same(count: int, *feature: int) -> Callable[[int], tuple[Shape, ...]]:
    return lambda n: ((n, *feature),) * count


def _pointwise(
    name: str, run: Any, count: int, family: str = "pointwise", single: bool = True
) -> Operation:
    return Operation(family, name, _same(count, 5), run, count, single)


ELEMENTWISE: Final = (
    _pointwise("add", torch.add, 2),
    _pointwise("sub", torch.sub, 2),
    _pointwise("mul", torch.mul, 2),
    _pointwise("div", torch.div, 2),
    _pointwise("sqrt", torch.sqrt, 1),
    _pointwise("reciprocal", torch.reciprocal, 1),
    _pointwise("addcmul", torch.addcmul, 3, single=False),
    _pointwise("lerp", lambda x, y: torch.lerp(x, y, 0.3), 2, single=False),
    _pointwise("exp", torch.exp, 1, "transcendental"),
    _pointwise("tanh", torch.tanh, 1, "transcendental"),
    _pointwise("Legendre polynomial", _legendre, 1, "polynomial", single=False),
    _pointwise("gelu", F.gelu, 1, "activation", single=False),
    _pointwise("silu", F.silu, 1, "activation", single=False),
    _pointwise("gelu gradient", _gradient(F.gelu), 2, "activation_backward", single=False),
    _pointwise("adam step", _step, 2, "optimizer", single=False),
)

OPERATIONS: Final = (
    *ELEMENTWISE,
    Operation("conversion", "from binary64", _same(1, 5), _third, single=True),
    Operation("reduction", "sum of features", _same(1, 77), lambda x: x.sum(1)),
    Operation("reduction", "sum", _same(1, 9), lambda x: x.sum(), 0),
    Operation("reduction", "mean", _same(1, 3, 11), lambda x: x.mean((1, 2))),
    Operation("reduction", "product", _same(1, 7), lambda x: x.prod(1)),
    Operation("reduction", "norm", _same(1, 41), lambda x: x.norm(dim=1)),
    Operation("reduction", "variance", _same(1, 13), lambda x: x.var(1)),
    Operation("reduction", "logsumexp", _same(1, 13), lambda x: x.logsumexp(1)),
    Operation("reduction", "running sum", _same(1, 21), lambda x: x.cumsum(1)),
    Operation("linear_algebra", "mm", lambda n: ((n, 19), (19, 9)), torch.mm),
    Operation("linear_algebra", "mm of a few columns", lambda n: ((n, 19), (19, 3)), torch.mm),
    Operation("linear_algebra", "mm of many rows", lambda n: ((9, n), (n, n)), torch.mm, 0),
    Operation("linear_algebra", "bmm", lambda n: ((n, 3, 7), (n, 7, 5)), torch.bmm, 2),
    Operation("linear_algebra", "mv", lambda n: ((n, 13), (13,)), torch.mv),
    Operation("linear_algebra", "dot", lambda n: ((n,), (n,)), torch.dot, 0),
    Operation("linear_algebra", "linear", lambda n: ((n, 19), (7, 19), (7,)), F.linear),
    Operation(
        "convolution",
        "conv1d",
        lambda n: ((n, 4, 9), (6, 2, 3)),
        lambda x, w: F.conv1d(x, w, groups=2),
    ),
    Operation(
        "convolution",
        "conv2d",
        lambda n: ((n, 3, 7, 9), (5, 3, 3, 2), (5,)),
        lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=1, dilation=(1, 2)),
    ),
    Operation("convolution", "conv3d", lambda n: ((n, 2, 3, 4, 5), (3, 2, 2, 2, 2)), F.conv3d),
    Operation(
        "convolution",
        "conv2d transposed",
        lambda n: ((n, 3, 4, 5), (3, 2, 3, 2)),
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1),
    ),
    Operation(
        "convolution",
        "gradient of a convolved image",
        lambda n: ((n, 3, 6, 7), (4, 3, 3, 3), (n, 4, 4, 5)),
        _gradient(F.conv2d),
        0,
    ),
    Operation(
        "convolution",
        "gradient of a kernel",
        lambda n: ((4, 3, 3, 3), (n, 3, 6, 7), (n, 4, 4, 5)),
        _gradient(lambda w, x: F.conv2d(x, w)),
        0,
    ),
    Operation(
        "normalization",
        "layer norm",
        lambda n: ((n, 23), (23,), (23,)),
        lambda x, w, b: F.layer_norm(x, (23,), w, b),
    ),
    Operation(
        "normalization", "group norm", _same(1, 4, 3, 5), lambda x: F.group_norm(x, 2), single=False
    ),
    Operation(
        "batch_norm",
        "batch norm",
        lambda n: ((n + 1, 3, 4, 5), (3,), (3,)),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        0,
    ),
    Operation(
        "batch_norm",
        "batch norm in evaluation",
        lambda n: ((n, 3, 4, 5), (3,), (3,)),
        lambda x, mean, variance: F.batch_norm(x, mean, variance),
    ),
    Operation("softmax", "softmax", _same(1, 17), lambda x: x.softmax(1)),
    Operation("softmax", "log-softmax", _same(1, 17), lambda x: x.log_softmax(1)),
    Operation("pooling", "average pooling", _same(1, 2, 6, 7), lambda x: F.avg_pool2d(x, 3, 2, 1)),
    Operation(
        "pooling", "adaptive pooling", _same(1, 2, 6, 7), lambda x: F.adaptive_avg_pool2d(x, (3, 4))
    ),
    Operation("loss", "squared error", _same(2, 5), F.mse_loss, 0),
    Operation(
        "loss",
        "cross-entropy",
        _same(1, 10),
        lambda x: F.cross_entropy(x, _index(len(x), 10), reduction="none"),
    ),
    Operation("ctc", "transcription", _same(1, 5, 7), _transcribed),
    Operation(
        "indexing",
        "index_add",
        lambda n: ((3, 5), (n, 5)),
        lambda x, y: x.index_add(0, _index(len(y), 3), y),
        0,
    ),
    Operation(
        "indexing",
        "gradient of an embedding",
        lambda n: ((4, 5), (n, 5)),
        lambda w, g: _gradient(lambda w: F.embedding(_index(len(g), 4), w))(w, g),
        0,
    ),
    Operation(
        "complex_functions",
        "polar",
        _same(2, 5),
        lambda x, y: torch.view_as_real(torch.polar(x, y)),
        0,
    ),
    Operation(
        "complex",
        "complex product",
        lambda n: ((n, 4, 2), (4, 3, 2)),
        lambda x, y: torch.view_as_real(torch.complex(*x.unbind(2)) @ torch.complex(*y.unbind(2))),
        0,
    ),
    Operation(
        "complex_linear",
        "complex index_add",
        lambda n: ((3, 5, 2), (n, 5, 2)),
        lambda x, y: torch.view_as_real(
            torch.complex(*x.unbind(2)).index_add(0, _index(len(y), 3), torch.complex(*y.unbind(2)))
        ),
        0,
    ),
    Operation(
        "complex_reduction",
        "complex product of factors",
        lambda n: ((n, 7, 2),),
        lambda x: torch.view_as_real(torch.complex(*x.unbind(2)).prod(1)),
        0,
    ),
    Operation(
        "fft",
        "Fourier transform",
        lambda n: ((3, n),),
        lambda x: torch.view_as_real(torch.fft.rfft(x)),
        0,
    ),
    Operation(
        "factorization",
        "Cholesky factor",
        lambda n: ((n, n),),
        lambda x: torch.linalg.cholesky(x @ x.mT + 4 * torch.eye(len(x))),
        0,
    ),
    Operation(
        "solve",
        "solution of a linear system",
        lambda n: ((n, n), (n, 3)),
        lambda x, y: torch.linalg.solve(x + len(x) * torch.eye(len(x)), y),
        0,
    ),
    Operation(
        "indefinite",
        "factor of an indefinite matrix",
        lambda n: ((n, n),),
        lambda x: torch.linalg.ldl_factor(x + x.mT)[0],
        0,
    ),
    Operation(
        "spectral",
        "singular values",
        lambda n: ((n, 4),),
        torch.linalg.svdvals,
        0,
    ),
    Operation(
        "sparse",
        "sparse product",
        lambda n: ((n, 7), (7, 3)),
        lambda x, y: torch.sparse.mm(x.to_sparse(), y),
        0,
    ),
    Operation(
        "sparse_reduce",
        "averages of a sparse product",
        lambda n: ((n, 7), (7, 3)),
        lambda x, y: torch.sparse.mm(x.to_sparse_csr(), y, "mean"),
        0,
    ),
    Operation(
        "matrix_exp",
        "matrix exponential",
        lambda n: ((n, n),),
        lambda x: torch.linalg.matrix_exp(x / len(x)),
        0,
    ),
    Operation(
        "margin_loss",
        "gradient of a margin loss",
        lambda n: ((n, 5), ()),
        _gradient(lambda x: F.multi_margin_loss(x, _index(len(x), 4), p=2)),
        0,
    ),
    Operation(
        "segment",
        "sums of segments",
        _same(1, 5),
        lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([len(x)]), initial=0.3),
        0,
    ),
    Operation(
        "histogram",
        "density",
        lambda n: ((n,), (n,)),
        lambda x, y: torch.histogram(x, torch.linspace(0, 3, 4), weight=y, density=True)[0],
        0,
    ),
    Operation(
        "sparse_functions",
        "sparse softmax",
        lambda n: ((n, 7),),
        lambda x: torch.sparse.softmax(x.to_sparse(), 1).to_dense(),
        0,
    ),
    Operation("folding", "fold", _same(1, 12, 9), lambda x: F.fold(x, (4, 4), 2)),
    Operation(
        "attention",
        "attention",
        _same(3, 2, 7, 8),
        # Torch itself takes another algorithm where the features do not lie side by side.
        lambda *x: F.scaled_dot_product_attention(*(v.contiguous() for v in x)),
        3,
    ),
    Operation("transformer", "encoder layer", _same(1, 5, 8), _encoded),
    Operation("recurrent", "LSTM", _same(1, 4, 5), _remembered, 0),
    Operation(
        "embedding_bag",
        "bags",
        _same(1, 5),
        lambda w: F.embedding_bag(_index(3 * len(w), len(w)).view(-1, 3), w),
        0,
    ),
    Operation(
        "interpolation",
        "bilinear interpolation",
        _same(1, 2, 4, 5),
        lambda x: F.interpolate(x, size=(7, 9), mode="bilinear"),
    ),
    Operation(
        "grid_sampling",
        "grid sampling",
        lambda n: ((n, 2, 5, 5), (n, 3, 4, 2)),
        lambda x, grid: F.grid_sample(x, grid - 1, align_corners=False),
        2,
    ),
    Operation("multilinear", "bilinear form", lambda n: ((n, 3), (n, 4), (5, 3, 4)), F.bilinear, 2),
)


def _contiguous(buffer: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return buffer[MARGIN : MARGIN + x.numel()].view(x.shape)


def _strided(buffer: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    spread = (*x.shape[:-1], 3 * x.shape[-1]) if x.dim() else (3,)
    y = buffer[MARGIN : MARGIN + 3 * x.numel()].view(spread)[..., 1::3]
    return y if x.dim() else y[0]


def _transposed(buffer: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    backwards = buffer[MARGIN : MARGIN + x.numel()].view(x.shape[::-1])
    return backwards.permute(*range(x.dim())[::-1])


def _channels_last(buffer: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    last = (*x.shape[:1], *x.shape[2:], *x.shape[1:2])
    return _contiguous(buffer, torch.empty(last, device="meta")).movedim(-1, min(1, x.dim() - 1))


MARGIN: Final = 67
"""Elements of padding before and after a guarded tensor."""

LAYOUTS: Final[dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "contiguous": _contiguous,
    "strided": _strided,
    "transposed": _transposed,
    "channels last": _channels_last,
}
"""Layouts of a tensor within a buffer."""


def guarded(x: torch.Tensor, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy of ``x`` in a layout, and its buffer, which is NaN wherever the copy is not."""
    buffer = torch.full((3 * x.numel() + 2 * MARGIN,), torch.nan)
    y = LAYOUTS[layout](buffer, x) if x.dim() else _strided(buffer, x)
    return y.copy_(x), buffer


def untouched(y: torch.Tensor, buffer: torch.Tensor) -> bool:
    """Whether everything around a guarded tensor is still NaN; leaves the tensor NaN."""
    y.fill_(torch.nan)
    return bool(buffer.isnan().all())
