"""The weakest claim with noise: torch computes in binary64, and only the result is rounded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.dtypes import NARROW, is_dense, real_parts
from fuzzytorch.ops.storing import result_dtypes, stock_dtypes, store
from fuzzytorch.table import Row, Verdict


class NotInBinary64(Exception):
    """Torch cannot compute an operation in binary64, so that nothing can be rounded."""


def coarse_row(overload: Any) -> Row | None:
    """The row that computes a functional aten overload in binary64, or ``None``.

    Operations that draw random numbers draw others in binary64 than in binary32, and
    those that write into or alias their arguments cannot be run on copies.
    """
    schema = overload._schema
    if (
        overload.namespace != "aten"
        or torch.Tag.nondeterministic_seeded in overload.tags
        or any(a.alias_info is not None for a in schema.arguments)
        or not any("Tensor" in str(r.type) for r in schema.returns)
    ):
        return None
    return _coarse(overload)


def _coarse(overload: Any) -> Row:
    why = "torch computes it in binary64; the result alone is rounded"
    return Row(str(overload), Verdict.COARSE, _in_binary64(overload), why, any_dtype=True)


def _in_binary64(overload: Any) -> Callable[..., Any]:
    def run(call: Call, *args: Any, **kwargs: Any) -> Any:
        wide_args, wide_kwargs = tree_map(_widened, (args, kwargs))
        try:
            result = overload(*wide_args, **wide_kwargs)
        except (RuntimeError, NotImplementedError) as error:
            raise NotInBinary64 from error
        results = tuple(result) if isinstance(result, (list, tuple)) else (result,)
        if any(isinstance(y, torch.Tensor) and not is_dense(y) for y in results):
            raise NotInBinary64
        dtypes = result_dtypes(overload, args, kwargs) or stock_dtypes(overload, args, kwargs)
        stored = tuple(
            rounded_once(call, y, dtype) if isinstance(y, torch.Tensor) and dtype is not None else y
            for y, dtype in zip(results, dtypes, strict=True)
        )
        if not isinstance(result, (list, tuple)):
            return stored[0]
        return list(stored) if isinstance(result, list) else stored

    return run


def rounded_once(call: Call, y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A result that was computed in binary64 as ``dtype``: one rounding, also in binary64."""
    if y.dtype == dtype == torch.float64:
        return call.stored(y, dtype, call.run_rounding)
    if y.dtype == dtype == torch.complex128:
        return torch.view_as_complex(rounded_once(call, real_parts(y), torch.float64))
    return store(call, y, dtype)


def _widened(x: Any) -> Any:
    if isinstance(x, torch.Tensor) and (x.dtype == torch.float32 or x.dtype in NARROW):
        return x.to(torch.float64)
    if isinstance(x, torch.Tensor) and x.dtype == torch.complex64:
        return x.resolve_conj().to(torch.complex128)
    return {torch.float32: torch.float64, torch.complex64: torch.complex128}.get(x, x)


def estimated_operations(
    overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> int:
    """Scalar floating-point operations of a call that no primitive counted.

    The formula of ``torch.utils.flop_counter`` where it has one, those below for opaque
    layers, else one operation for each element of the results.
    """
    from torch.utils.flop_counter import flop_registry

    opaque = _OPAQUE.get(str(overload))
    if opaque is not None:
        return opaque(*args)
    formula = flop_registry.get(getattr(overload, "_overloadpacket", None))
    if formula is not None:
        return int(formula(*args, **kwargs, out_val=result))
    results = result if isinstance(result, (list, tuple)) else (result,)
    return sum(
        y.numel()
        for y in results
        if isinstance(y, torch.Tensor) and (y.is_floating_point() or y.is_complex())
    )


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> int:
    """The two products of attention: queries with keys, weights with values."""
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    return 2 * pairs * (query.shape[-1] + value.shape[-1])


def _attention_backward(grad: torch.Tensor, *operands: Any) -> int:
    """Five products instead of two: the weights are computed again."""
    return 5 * _attention(*operands) // 2


def _encoder_layer(
    src: torch.Tensor,
    width: int,
    heads: int,
    inner: torch.Tensor,
    _: Any,
    outer: torch.Tensor,
    *rest: Any,
) -> int:
    """The products of attention and those of every token with all weight matrices."""
    weights = [
        inner,
        outer,
        *(w for w in rest[:12] if isinstance(w, torch.Tensor) and w.dim() == 2),
    ]
    lengths = [sequence.shape[0] for sequence in src.unbind()]
    products = sum(lengths) * sum(w.numel() for w in weights)
    return 2 * products + 4 * width * sum(length**2 for length in lengths)


def _recurrent(x: torch.Tensor, inner: torch.Tensor, outer: torch.Tensor, *_: Any) -> int:
    """The products of every step with the weights of its input and of its state."""
    return 2 * math.prod(x.shape[:-1]) * (inner.numel() + outer.numel())


def _recurrent_backward(*operands: Any) -> int:
    return 2 * _recurrent(*operands)


_OPAQUE: Final[Mapping[str, Callable[..., int]]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
    "aten._transformer_encoder_layer_fwd.default": _encoder_layer,
    "aten.mkldnn_rnn_layer.default": _recurrent,
    "aten.mkldnn_rnn_layer_backward.default": _recurrent_backward,
}
"""Operations of layers that arrive whole and that torch has no formula for."""

ROWS = (
    Row(
        "aten.to_mkldnn.default",
        Verdict.UNCOVERED,
        None,
        "what is computed in its layout, as after torch.jit.optimize_for_inference, may not "
        "reach the mode",
    ),
)
