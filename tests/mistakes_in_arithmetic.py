"""What programs get wrong with elements, indices, shapes and gradients, and stock torch refuses."""

from __future__ import annotations

import torch
from operands import Mistake
from torch.nn import functional as F

ELEMENTWISE: dict[str, Mistake] = {
    "add": lambda t: t(3) + t(4),
    "add_": lambda t: t(3).add_(t(4, 3)),
    "add_ leaf": lambda t: t.leaf(3).add_(1),
    "add_ int": lambda t: t.ones(3, dtype=torch.int64).add_(t(3)),
    "add_ expand": lambda t: t(1).expand(3).add_(1),
    "mul_ expand": lambda t: t(1).expand(3).mul_(t(3)),
    "div_ int": lambda t: t.ones(3, dtype=torch.int64).div_(2),
    "add alpha": lambda t: torch.add(t.ones(3, dtype=torch.int64), 1, alpha=0.5),
    "add str": lambda t: torch.add(t(3), "a"),
    "sub bool": lambda t: t.ones(3).bool() - t.ones(3).bool(),
}


OUTPUTS: dict[str, Mistake] = {
    "mul out dt": lambda t: torch.mul(t(3), t(3), out=t.empty(3, dtype=torch.int64)),
    "exp out int": lambda t: torch.exp(t(3), out=t.empty(3, dtype=torch.int32)),
    "mm out dt": lambda t: torch.mm(t(3, 3), t(3, 3), out=t.empty(3, 3, dtype=torch.float64)),
    "mm out int": lambda t: torch.mm(t(3, 3), t(3, 3), out=t.empty(3, 3, dtype=torch.int64)),
    "mm out bad": lambda t: torch.mm(t(3, 4), t(3, 3), out=t.empty(3, 3)),
    "out leaf": lambda t: torch.mul(t(3), 2, out=t.leaf(3)),
    "out leaf mm": lambda t: torch.mm(t.leaf(3, 3), t(3, 3), out=t(3, 3)),
    "out expand": lambda t: torch.add(t(3), t(3), out=t(1).expand(3)),
    "out overlap": lambda t: (lambda x: torch.add(x[:-1], 1, out=x[1:]))(t(5)),
    "inplace overlap": lambda t: (lambda x: x[1:].add_(x[:-1]))(t(5)),
}


INDICES: dict[str, Mistake] = {
    "embedding": lambda t: F.embedding(t.index(0, 5), t(5, 3)),
    "embedding neg": lambda t: F.embedding(t.index(0, -1), t(5, 3)),
    "embedding dt": lambda t: F.embedding(t(2), t(5, 3)),
    "embedding grad": lambda t: F.embedding(t.index(0, 7), t.leaf(5, 3)).sum().backward(),
    "embedding_bag": lambda t: F.embedding_bag(t.index(0, 7), t(5, 3), t.index(0)),
    "embedding_bag off": lambda t: F.embedding_bag(t.index(0, 1), t(5, 3), t.index(1)),
    "embedding_bag off2": lambda t: F.embedding_bag(t.index(0, 1), t(5, 3), t.index(0, 5)),
    "embedding_bag max": lambda t: F.embedding_bag(t.index(0, 9), t(5, 3), t.index(0), mode="max"),
    "gather": lambda t: torch.gather(t(3, 3), 1, t.index(5)[None]),
    "gather dt f": lambda t: torch.gather(t(3, 3), 1, t(1, 1)),
    "gather nd": lambda t: torch.gather(t(3, 3), 1, t.index(0)),
    "scatter": lambda t: t.zeros(3, 3).scatter_(1, t.index(5)[None], t(1, 1)),
    "scatter_add": lambda t: t.zeros(3, 3).scatter_add_(1, t.index(5)[None], t(1, 1)),
    "scatter_add dt": lambda t: t.zeros(3, 3).scatter_add_(1, t.index(1)[None], t(1, 1).double()),
    "scatter_add shape": lambda t: t.zeros(3, 3).scatter_add_(1, t.index(1, 1)[None], t(1, 1)),
    "scatter_reduce": lambda t: t.zeros(3, 3).scatter_reduce_(1, t.index(5)[None], t(1, 1), "mean"),
    "scatter_reduce kind": lambda t: t.zeros(3, 3).scatter_reduce_(
        1, t.index(1)[None], t(1, 1), "median"
    ),
    "index_select": lambda t: torch.index_select(t(3, 3), 0, t.index(3)),
    "index_select dt": lambda t: torch.index_select(t(3, 3), 0, t(3)),
    "index_add": lambda t: t.zeros(3, 3).index_add_(0, t.index(3), t(1, 3)),
    "index_add shape": lambda t: t.zeros(3, 3).index_add_(0, t.index(1, 2), t(1, 3)),
    "index_add dt": lambda t: t.zeros(3, 3).index_add_(0, t.index(1), t(1, 3).double()),
    "index_put": lambda t: t.zeros(3, 3).index_put_((t.index(3),), t(3), accumulate=True),
    "index_put shape": lambda t: t.zeros(3, 3).index_put_((t.index(1),), t(4), accumulate=True),
    "index_put dt": lambda t: t.zeros(3, 3).index_put_(
        (t.index(1),), t(3).double(), accumulate=True
    ),
    "getitem": lambda t: t(3)[t.index(3)],
    "getitem dt": lambda t: t(3)[t(3)],
    "getitem mask": lambda t: t(3)[torch.tensor([True, False])],
    "getitem dims": lambda t: t(3)[0, 0],
    "getitem oob": lambda t: t(3)[3],
    "setitem": lambda t: t(3).__setitem__(slice(0, 2), t(3)),
    "index_copy": lambda t: t.zeros(3, 3).index_copy_(0, t.index(3), t(1, 3)),
    "take": lambda t: torch.take(t(3), t.index(3)),
}


SHAPES: dict[str, Mistake] = {
    "empty neg": lambda t: torch.empty(-1),
    "zeros neg": lambda t: torch.zeros(2, -3),
    "randn neg": lambda t: torch.randn(-2),
    "view": lambda t: t(6).view(4),
    "reshape": lambda t: t(6).reshape(4),
    "expand": lambda t: t(3).expand(4),
    "permute": lambda t: t(3, 3).permute(0, 0),
    "narrow": lambda t: t(3).narrow(0, 2, 5),
    "split": lambda t: t(5).split([2, 2]),
    "chunk": lambda t: t(5).chunk(0),
    "transpose dim": lambda t: t(3, 3).transpose(0, 5),
}


REDUCTIONS: dict[str, Mistake] = {
    "sum dim": lambda t: t(3, 3).sum(2),
    "sum dim2": lambda t: t(3, 3).sum((0, 0)),
    "mean dim": lambda t: t(3, 3).mean(-3),
    "mean int": lambda t: t.ones(3, dtype=torch.int64).mean(),
    "var dim": lambda t: t(3, 3).var(5),
    "std int": lambda t: t.ones(3, dtype=torch.int64).std(),
    "max empty": lambda t: t.empty(0).max(),
    "max empty dim": lambda t: t.empty(0, 3).max(0),
    "amax empty": lambda t: t.empty(0, 3).amax(0),
    "argmax empty": lambda t: t.empty(0).argmax(),
    "median": lambda t: t.empty(0, 3).median(0),
    "cumsum dim": lambda t: t(3, 3).cumsum(4),
    "cumprod dim": lambda t: t(3, 3).cumprod(4),
    "logsumexp dim": lambda t: t(3).logsumexp(2),
    "logsumexp int": lambda t: torch.logsumexp(t(3, 3), dim=(0, 0)),
    "softmax dim": lambda t: t(3).softmax(2),
    "log_softmax dim": lambda t: t(3).log_softmax(2),
    "softmax int": lambda t: t.ones(3, dtype=torch.int64).softmax(0),
    "norm ord": lambda t: torch.norm(t(3, 3), p="bad"),
    "linalg norm": lambda t: torch.linalg.norm(t(3, 3), ord="bad"),
    "vector_norm int": lambda t: torch.linalg.vector_norm(t.ones(3, dtype=torch.int64)),
    "vector_norm empty": lambda t: torch.linalg.vector_norm(t.empty(0), ord=float("inf")),
    "vector_norm neg": lambda t: torch.linalg.vector_norm(t.empty(0), ord=-1),
    "matrix_norm": lambda t: torch.linalg.matrix_norm(t(3)),
    "matrix_norm ord": lambda t: torch.linalg.matrix_norm(t(3, 3), ord=3),
    "renorm": lambda t: t(3, 3).renorm(-1, 0, 1.0),
    "normalize dim": lambda t: F.normalize(t(3), dim=4),
    "cdist": lambda t: torch.cdist(t(3, 4), t(3, 5)),
    "cdist p": lambda t: torch.cdist(t(3, 4), t(3, 4), p=-1),
    "cosine": lambda t: F.cosine_similarity(t(3, 4), t(3, 5)),
}


NUMBERS: dict[str, Mistake] = {
    "dropout": lambda t: F.dropout(t(3), p=2.0),
    "gumbel": lambda t: torch.bernoulli(torch.full((3,), 2.0)),
    "multinomial": lambda t: torch.multinomial(torch.tensor([-1.0, 1.0]), 1),
    "normal": lambda t: torch.normal(t(3), -t.ones(3)),
    "prelu": lambda t: F.prelu(t(2, 3), t(4)),
    "glu": lambda t: F.glu(t(3)),
    "celu": lambda t: F.celu(t(3), alpha=0.0),
    "rrelu": lambda t: F.rrelu(t(3), lower=1.0, upper=0.5, training=True),
    "hardshrink": lambda t: F.softshrink(t(3), -1.0),
    "threshold": lambda t: F.threshold(t(3), "a", 1),
    "clamp": lambda t: t(3).clamp(),
    "clamp dt": lambda t: t(3).clamp(min=t(4)),
    "pow": lambda t: t.ones(3, dtype=torch.int64) ** -1,
    "pow_": lambda t: t.ones(3, dtype=torch.int64).pow_(0.5),
    "lerp": lambda t: torch.lerp(t(3), t(3).double(), 0.5),
    "addcmul": lambda t: torch.addcmul(t(3), t(4), t(3)),
    "addcdiv int": lambda t: torch.addcdiv(*(t.ones(3, dtype=torch.int64),) * 3),
    "where": lambda t: torch.where(t.ones(2).bool(), t(3), t(3)),
    "where dt": lambda t: torch.where(t(3), t(3), t(3)),
    "masked_fill": lambda t: t(3).masked_fill(t.ones(2).bool(), 1.0),
    "masked_fill dt": lambda t: t(3).masked_fill(t.ones(3), 1.0),
}


LINEAR_ALGEBRA: dict[str, Mistake] = {
    "cross": lambda t: torch.linalg.cross(t(3, 4), t(3, 4)),
    "inv": lambda t: torch.linalg.inv(t.zeros(3, 3)),
    "inv sq": lambda t: torch.linalg.inv(t(3, 4)),
    "cholesky": lambda t: torch.linalg.cholesky(-torch.eye(3)),
    "solve": lambda t: torch.linalg.solve(t.zeros(3, 3), t(3)),
    "svd": lambda t: torch.linalg.svd(t(3)),
    "qr": lambda t: torch.linalg.qr(t(3, 3), mode="bad"),
    "eigh nan": lambda t: torch.linalg.eigh(t.full((3, 3), float("nan"))),
    "einsum": lambda t: torch.einsum("ij,jk->ik", t(3, 4), t(5, 6)),
    "einsum eq": lambda t: torch.einsum("ij,jk", t(3, 4)),
    "tensordot": lambda t: torch.tensordot(t(3, 4), t(5, 6), dims=1),
    "kron": lambda t: torch.kron(t(3), "a"),
    "fft": lambda t: torch.fft.fft(t(3), n=0),
    "stft": lambda t: torch.stft(t(10), n_fft=20, center=False, return_complex=True),
    "bincount": lambda t: torch.bincount(t.index(-1), weights=t(1)),
    "histc": lambda t: torch.histc(t(3), bins=0),
    "bucketize": lambda t: torch.bucketize(t(3), t(2, 2)),
    "topk": lambda t: t(3).topk(5),
    "sort": lambda t: t(3).sort(dim=4),
    "kthvalue": lambda t: t(3).kthvalue(4),
    "quantile": lambda t: t(3).quantile(2.0),
    "trapz": lambda t: torch.trapezoid(t(3), t(4)),
    "diag": lambda t: torch.diag(t(2, 2, 2)),
    "trace": lambda t: torch.trace(t(3)),
    "trace2": lambda t: torch.trace(t(2, 2, 2)),
}


DERIVATIVES: dict[str, Mistake] = {
    "backward noscalar": lambda t: (t.leaf(3) * 2).backward(),
    "backward twice": lambda t: (lambda y: (y.backward(), y.backward()))((t.leaf(3) ** 2).sum()),
    "backward shape": lambda t: (t.leaf(3) * 2).backward(t(4)),
    "backward nograd": lambda t: (t(3) * 2).sum().backward(),
    "backward modified": lambda t: (
        lambda x: (lambda y, z: (y.add_(1), z.sum().backward()))(
            *(lambda y: (y, y.exp() * y))(x * 2)
        )
    )(t.leaf(3)),
    "grad unused": lambda t: torch.autograd.grad(t.leaf(3).sum(), t.leaf(3)),
    "inplace exp": lambda t: (lambda y: (y.exp().mul_(2).sum() + 0 * y.sum()).backward())(
        t.leaf(3) * 2
    ),
    "inplace sigmoid": lambda t: (lambda s: (s.mul_(2), s.sum().backward()))(t.leaf(3).sigmoid()),
    "inference": lambda t: (lambda x: (x * t.leaf(3)).sum().backward())(
        torch.inference_mode()(lambda: t(3) * 2)()
    ),
    "inference inplace": lambda t: torch.inference_mode()(lambda: t(3) * 2)().add_(1),
    "conv bwd": lambda t: torch.ops.aten.convolution_backward(
        t(1, 4, 5, 5),
        t(1, 3, 8, 8),
        t(4, 3, 3, 3),
        [4],
        [1, 1],
        [0, 0],
        [1, 1],
        False,
        [0, 0],
        1,
        [True, True, True],
    ),
    "ln bwd": lambda t: torch.ops.aten.native_layer_norm_backward(
        t(3, 4), t(3, 5), [5], t(3, 1), t(3, 1), None, None, [True, True, True]
    ),
    "softmax bwd": lambda t: torch.ops.aten._softmax_backward_data(
        t(3, 4), t(3, 5), 1, torch.float32
    ),
    "sigmoid bwd": lambda t: torch.ops.aten.sigmoid_backward(t(3), t(4)),
}


OTHERS: dict[str, Mistake] = {
    "gelu": lambda t: F.gelu(t(3), approximate="bad"),
    "gelu int": lambda t: F.gelu(t.ones(3, dtype=torch.int64)),
    "silu_ leaf": lambda t: F.silu(t.leaf(3), inplace=True),
    "relu int": lambda t: F.softplus(t.ones(3, dtype=torch.int64)),
    "reduce str": lambda t: F.mse_loss(t(3), t(3), reduction="bad"),
    "adam sparse": lambda t: torch._foreach_add([t(3)], [t(4)]),
    "foreach len": lambda t: torch._foreach_add([t(3)], [t(3), t(3)]),
    "foreach_": lambda t: torch._foreach_mul_([t.leaf(3)], 2.0),
    "complex out": lambda t: torch.add(t(3).to(torch.complex64), 1, out=t.empty(3)),
    "mixed dev": lambda t: t(3) + torch.empty(3, device="meta"),
    "sparse mm": lambda t: torch.mm(t(3, 3).to_sparse(), t(4, 4)),
    "segment": lambda t: torch.segment_reduce(t(3), "sum", lengths=t.index(5)),
    "trilinear": lambda t: F.bilinear(t(2, 3), t(2, 4), t(5, 3, 5)),
    "to none": lambda t: t(3).to("bad"),
    "item": lambda t: t(3).item(),
    "set_": lambda t: t(3).copy_(t(4)),
    "nan_to_num": lambda t: t(3).nan_to_num_("x"),
    "dist": lambda t: torch.dist(t(3), t(4)),
    "allclose": lambda t: torch.allclose(t(3), t(3).double()),
    "hinge": lambda t: F.margin_ranking_loss(t(3), t(4), t(3)),
    "cosemb": lambda t: F.cosine_embedding_loss(t(2, 3), t(2, 3), t(2, 2)),
    "triplet": lambda t: F.triplet_margin_loss(t(2, 3), t(2, 4), t(2, 3)),
    "poisson": lambda t: F.gaussian_nll_loss(t(3), t(3), -t.ones(3)),
    "unfold dim": lambda t: t(3).unfold(0, 5, 1),
    "repeat": lambda t: t(3, 3).repeat(2),
    "roll": lambda t: t(3).roll(1, 5),
    "flip": lambda t: t(3).flip(5),
    "logcumsumexp": lambda t: t(3).logcumsumexp(4),
    "diff": lambda t: t(3).diff(n=-1),
    "prod dim": lambda t: t(3).prod(4),
    "nansum": lambda t: t(3).nansum(4),
    "addmm_": lambda t: t(5).addmm_(t(3, 4), t(4, 5)),
    "baddbmm_": lambda t: t(1, 5).baddbmm_(t(2, 3, 4), t(2, 4, 5)),
    "mul_ bcast": lambda t: t(3).mul_(t(2, 3)),
    "lerp_": lambda t: t(3).lerp_(t(2, 3), 0.5),
    "exp_ int": lambda t: t.ones(3, dtype=torch.int64).exp_(),
    "sqrt_ int": lambda t: t.ones(3, dtype=torch.int64).sqrt_(),
    "add_ half": lambda t: t.ones(3, dtype=torch.int64).add_(0.5),
    "softmax out": lambda t: torch.softmax(t(3), 0, out=t.empty(3, dtype=torch.int64)),
    "matmul out": lambda t: torch.matmul(t(3, 3), t(3, 3), out=t.empty(3, 3, dtype=torch.int64)),
    "norm out": lambda t: torch.linalg.vector_norm(t(3), out=t.empty((), dtype=torch.float64)),
    "mean out": lambda t: torch.mean(t(3, 3), 0, out=t.empty(3, dtype=torch.int64)),
    "var out": lambda t: torch.var(t(3, 3), 0, correction=1, out=t.empty(3, dtype=torch.int64)),
    "bmm out": lambda t: torch.bmm(
        t(2, 3, 3), t(2, 3, 3), out=t.empty(2, 3, 3, dtype=torch.float64)
    ),
    "bmm out half": lambda t: torch.bmm(
        t(2, 3, 3), t(2, 3, 3), out=t.empty(2, 3, 3, dtype=torch.float16)
    ),
    "addmm out": lambda t: torch.addmm(
        t(3), t(3, 3), t(3, 3), out=t.empty(3, 3, dtype=torch.float64)
    ),
    "dot out": lambda t: torch.dot(t(3), t(3), out=t.empty((), dtype=torch.float64)),
    "mv out": lambda t: torch.mv(t(3, 3), t(3), out=t.empty(3, dtype=torch.float64)),
    "avg_pool out": lambda t: torch._C._nn.avg_pool2d(
        t(1, 1, 4, 4), 2, out=t.empty(1, 1, 2, 2, dtype=torch.float64)
    ),
    "index_select out": lambda t: torch.index_select(
        t(3), 0, t.index(0), out=t.empty(1, dtype=torch.float64)
    ),
    "cat out": lambda t: torch.cat([t(3), t(3)], out=t.empty(6, dtype=torch.int64)),
    "gather out": lambda t: torch.gather(t(3), 0, t.index(0), out=t.empty(1, dtype=torch.float64)),
    "index_add out": lambda t: torch.index_add(
        t.zeros(3), 0, t.index(0), t(1), out=t.empty(3, dtype=torch.float64)
    ),
    "scatter_add out": lambda t: torch.scatter_add(
        t.zeros(3), 0, t.index(0), t(1), out=t.empty(3, dtype=torch.float64)
    ),
}


MISTAKES = (
    ELEMENTWISE
    | OUTPUTS
    | INDICES
    | SHAPES
    | REDUCTIONS
    | NUMBERS
    | LINEAR_ALGEBRA
    | DERIVATIVES
    | OTHERS
)
