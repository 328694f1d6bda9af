"""Calls of an operation on copies of a sample, and everything about them that a program sees."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map

ERRORS: Final = (
    RuntimeError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    UserWarning,
)
"""What torch raises, and what a row that is wrong could raise."""

WIDE: Final = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}
"""The dtype in which the values of another one are known without rounding."""


_WALKED: Final = 64
"""Dimensions up to which torch computes with a tensor; some samples have more, to be refused."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Copies of the arguments of a sample; what shared memory shares memory again."""

    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Every tensor among the arguments."""
        leaves = tree_leaves((self.input, self.args, self.kwargs))
        return [x for x in leaves if isinstance(x, torch.Tensor)]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a call did.

    Attributes:
        outputs: the tensors that it returned.
        values: what else it returned, numbers for instance.
        gradients: those with respect to the arguments that require one; ``None`` where torch
            has none.
        memory: for each output the number of the argument that it is or shares memory with,
            and that of the earlier output that it shares memory with.
        changed: for each tensor among the arguments, whether its version and whether its
            values are no longer what they were.
        random: a digest of the state of torch's random numbers afterwards.
        error: the type and the message of what it raised.
    """

    outputs: tuple[torch.Tensor, ...] = ()
    values: tuple[Any, ...] = ()
    gradients: tuple[torch.Tensor | None, ...] = ()
    memory: tuple[Any, ...] = ()
    changed: tuple[tuple[bool, bool], ...] = ()
    random: str = ""
    error: tuple[str, str] | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Outputs and gradients."""
        return [*self.outputs, *(g for g in self.gradients if g is not None)]


def copied(sample: Any, change: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Arguments:
    """Copies of the arguments with their strides and what they share.

    Args:
        sample: an OpInfo ``SampleInput``.
        change: makes of the numbers of a memory others, such as wider ones; element by element.
    """
    memories: dict[int, torch.Tensor] = {}
    known: dict[int, torch.Tensor] = {}

    def copy(x: Any) -> Any:
        if isinstance(x, torch.dtype) and change is not None:
            return WIDE.get(x, x)
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in known:
            y = _copy(x.detach(), change or torch.clone, memories)
            known[id(x)] = y.requires_grad_(x.requires_grad)
        return known[id(x)]

    return Arguments(*tree_map(copy, (sample.input, sample.args, sample.kwargs)))


def _copy(
    x: torch.Tensor,
    change: Callable[[torch.Tensor], torch.Tensor],
    memories: dict[int, torch.Tensor],
) -> torch.Tensor:
    plain = x.is_cpu and x.layout is torch.strided and not x.is_nested
    if not plain or x.is_conj() or x.is_neg() or x.is_quantized:
        return change(x)
    storage = x.untyped_storage()
    memory = memories.get(storage.data_ptr())
    if memory is None or storage.nbytes() == 0:
        elements = storage.nbytes() // x.itemsize
        flat = torch.empty(0, dtype=x.dtype).set_(storage, 0, (elements,), (1,))
        memory = memories[storage.data_ptr()] = change(flat)
    own = memory.untyped_storage()
    empty = torch.empty(0, dtype=memory.dtype)
    return empty.set_(own, x.storage_offset(), x.size(), x.stride())


def widened(x: torch.Tensor) -> torch.Tensor:
    """A tensor in the dtype that :data:`WIDE` gives, or a copy."""
    return x.to(WIDE[x.dtype]) if x.dtype in WIDE else x.clone()


def call(
    operation: Callable[..., Any],
    arguments: Arguments,
    gauge: Callable[[Any], Any] | None = None,
    weights: tuple[torch.dtype, ...] | None = None,
    mode: contextlib.AbstractContextManager[Any] | None = None,
) -> Outcome:
    """Runs an operation once from a fixed state of torch's random numbers.

    Args:
        operation: called with the input, the arguments and the keyword arguments.
        arguments: copies, which the call may change.
        gauge: makes of the results what is unique about them; with it gradients are taken.
        weights: the dtypes in which the gradients of the results are given; those of the
            results if ``None``.
        mode: what is active while the operation and its gradients are computed.
    """
    inside = contextlib.nullcontext() if mode is None else mode
    before = [(x, x._version, _copy(x.detach(), torch.clone, {})) for x in arguments.tensors]
    torch.default_generator.manual_seed(0)
    gradients: tuple[torch.Tensor | None, ...] = ()
    try:
        with inside:
            result = operation(arguments.input, *arguments.args, **arguments.kwargs)
        if gauge is not None:
            result = gauge(result)
        leaves = tree_leaves(result)
        outputs = tuple(y for y in leaves if isinstance(y, torch.Tensor))
        memory = _memory(outputs, arguments.tensors)
        if gauge is not None:
            gradients = _gradients(outputs, arguments.tensors, weights, inside)
    except ERRORS as error:
        changed = tuple((x._version != version, not same(x, y)) for x, version, y in before)
        return Outcome(changed=changed, error=(type(error).__name__, str(error)))
    return Outcome(
        tuple(y.detach() for y in outputs),
        tuple(y for y in leaves if not isinstance(y, torch.Tensor)),
        gradients,
        memory,
        tuple((x._version != version, not same(x, y)) for x, version, y in before),
        hashlib.sha1(torch.get_rng_state().numpy().tobytes()).hexdigest(),
    )


def _gradients(
    outputs: tuple[torch.Tensor, ...],
    inputs: list[torch.Tensor],
    dtypes: tuple[torch.dtype, ...] | None,
    inside: contextlib.AbstractContextManager[Any],
) -> tuple[torch.Tensor | None, ...]:
    own = [y.dtype for y in outputs] if dtypes is None else list(dtypes)
    pairs = [(y, d) for y, d in zip(outputs, own, strict=True) if y.requires_grad]
    leaves = list({id(x): x for x in inputs if x.requires_grad}.values())
    if not pairs or not leaves:
        return ()
    weights = [_weight(y, dtype) for y, dtype in pairs]
    with inside:
        return torch.autograd.grad([y for y, _ in pairs], leaves, weights, allow_unused=True)


def _weight(y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    ramp = torch.linspace(0.1, 1, y.numel(), dtype=torch.float64).reshape(y.shape)
    if dtype.is_complex:
        ramp = torch.complex(ramp, 0.25 - ramp)
    weight = ramp.to(dtype).to(y.dtype)
    return weight if y.layout is torch.strided else torch.ones_like(y)


def _memory(outputs: tuple[torch.Tensor, ...], inputs: list[torch.Tensor]) -> tuple[Any, ...]:
    found = []
    for i, y in enumerate(outputs):
        same = [j for j, x in enumerate(inputs) if x is y]
        shared = [j for j, x in enumerate(inputs) if _share(x, y)]
        earlier = [j for j, x in enumerate(outputs[:i]) if _share(x, y)]
        found.append((same[:1], shared[:1], earlier[:1], y.requires_grad))
    return tuple(found)


def _share(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.layout is not torch.strided or y.layout is not torch.strided:
        return x is y
    storages = x.untyped_storage(), y.untyped_storage()
    return storages[0].nbytes() > 0 and storages[0].data_ptr() == storages[1].data_ptr()


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors have the same shape and bits; every NaN counts as the same."""
    x, y = x.detach(), y.detach()
    if x.layout is not y.layout or x.shape != y.shape or x.dtype != y.dtype:
        return False
    if x.layout is not torch.strided:
        return same(x.to_dense(), y.to_dense())
    if x.is_meta or x.dim() > _WALKED:
        return True
    if x.dtype.is_complex:
        x, y = (torch.view_as_real(z.resolve_conj()) for z in (x, y))
    if not x.dtype.is_floating_point:
        return torch.equal(x, y)
    equal = (x == y) & (torch.signbit(x) == torch.signbit(y)) | (x.isnan() & y.isnan())
    return bool(equal.all())
