"""What the arguments ``include``, ``exclude`` and ``scopes`` of a mode select."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch.overrides import resolve_name

from fuzzytorch.ops.variants import variant_of

_SYNONYMS: Final = {
    "divide": "div",
    "itruediv": "div",
    "multiply": "mul",
    "subtract": "sub",
    "true_divide": "div",
    "truediv": "div",
}
_REFLECTED: Final = frozenset(
    f"{way}{name}"
    for way in "ir"
    for name in ("add", "sub", "mul", "div", "truediv", "pow", "matmul")
)


class Selector:
    """A question that a module, an operation, a function or a node of autograd may meet."""

    on_modules = False
    on_operations = False
    on_functions = False

    def __init__(self, text: str) -> None:
        self.text = text

    def module(self, module: torch.nn.Module, paths: Sequence[str]) -> bool:
        """Whether a module, known in its tree under these paths, is selected."""
        return False

    def operation(self, overload: Any) -> bool:
        """Whether an overload is selected."""
        return False

    def node(self, name: str) -> bool:
        """Whether the operation is selected whose derivative a node of this name computes."""
        return False

    def function(self, name: str) -> bool:
        """Whether a function of torch is selected, by :func:`name_of`."""
        return False


class Path(Selector):
    """Modules by path, as in ``"encoder.layers.*.attn*"``; ``*`` also stands for dots."""

    on_modules = True

    def __init__(self, pattern: str) -> None:
        super().__init__(repr(pattern))
        self._matches = re.compile(fnmatch.translate(pattern)).match

    def module(self, module: torch.nn.Module, paths: Sequence[str]) -> bool:
        return any(self._matches(path) for path in paths)


class Class(Selector):
    """Modules of a class, its subclasses included."""

    on_modules = True

    def __init__(self, kind: type[torch.nn.Module]) -> None:
        super().__init__(kind.__qualname__)
        self._kind = kind

    def module(self, module: torch.nn.Module, paths: Sequence[str]) -> bool:
        return isinstance(module, self._kind)


class Instance(Selector):
    """One module."""

    on_modules = True

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(f"the module {type(module).__qualname__}")
        self._module = module

    def module(self, module: torch.nn.Module, paths: Sequence[str]) -> bool:
        return module is self._module


class Operation(Selector):
    """Operations by name, as in ``"aten.mm"``, ``"aten.add.Tensor"`` or ``"aten.*norm*"``.

    An operation is met by its in-place and ``out=`` overloads too.
    """

    on_operations = True

    def __init__(self, pattern: str) -> None:
        super().__init__(repr(pattern))
        self._matches = re.compile(fnmatch.translate(pattern.replace("::", "."))).match

    def operation(self, overload: Any) -> bool:
        if not isinstance(overload, torch._ops.OpOverload):
            return False
        variant = variant_of(overload)
        return self._named(overload) or (variant is not None and self._named(variant.base))

    def _named(self, overload: Any) -> bool:
        name = str(overload)
        return bool(self._matches(name) or self._matches(name.rpartition(".")[0]))

    def node(self, name: str) -> bool:
        prefix = re.fullmatch(r"(\w+Backward)\d+", name)
        packets = _derivatives().get(prefix[1], ()) if prefix else ()
        return any(
            self._matches(packet) or any(self._matches(f"{packet}.{o}") for o in overloads)
            for packet, overloads in packets
        )


class Function(Selector):
    """Calls of a function of torch, of the method, the operator and the in-place form of it."""

    on_functions = True

    def __init__(self, function: Any) -> None:
        super().__init__(str(resolve_name(function)))
        self._name = name_of(function)

    def function(self, name: str) -> bool:
        return name == self._name


def selectors(value: Any, argument: str) -> tuple[Selector, ...]:
    """The selectors that one value stands for: one of the kinds above, or several of them.

    Raises:
        TypeError: a value of another kind.
        ValueError: an empty pattern, or a function that is not torch's.
    """
    single = (str, type, torch.nn.Module, torch._ops.OpOverloadPacket)
    if isinstance(value, Iterable) and not isinstance(value, single):
        return tuple(s for each in value for s in selectors(each, argument))
    return (_selector(value, argument),)


def _selector(value: Any, argument: str) -> Selector:
    if isinstance(value, str):
        if not value:
            raise ValueError(f"{argument} has an empty pattern, which names no module: remove it.")
        is_operation = value.startswith("aten.") or "::" in value
        return Operation(value) if is_operation else Path(value)
    if isinstance(value, type) and issubclass(value, torch.nn.Module):
        return Class(value)
    if isinstance(value, torch.nn.Module):
        return Instance(value)
    if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return Operation(str(value))
    if callable(value) and not isinstance(value, type):
        if resolve_name(value) is None:
            raise ValueError(
                f"{argument} has {value!r}, which is not a function of torch that can be watched: "
                "give a function such as torch.softmax, a module, or a pattern."
            )
        return Function(value)
    raise TypeError(
        f"{argument} has {value!r}: give the path of a module such as 'encoder.*', a module, a "
        "class of modules, an operation such as 'aten.mm', a function of torch, or a list of them."
    )


def name_of(function: Any) -> str:
    """The name that a function, its method, its operator and its in-place form share."""
    name = str(getattr(function, "__name__", function))
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        if name in _REFLECTED:
            name = name[1:]
    elif name.endswith("_"):
        name = name.rstrip("_")
    return _SYNONYMS.get(name, name)


@functools.cache
def _derivatives() -> dict[str, list[tuple[str, list[str]]]]:
    """Names of autograd nodes without their number: the operations that they differentiate."""
    packets: dict[str, list[str]] = {}
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        # What torch composes of other operations under autograd has no node of its own.
        if namespace == "aten" and not torch._C._dispatch_has_kernel_for_dispatch_key(
            name, "CompositeImplicitAutograd"
        ):
            operation, _, overload = rest.partition(".")
            packets.setdefault(operation, []).append(overload or "default")
    nodes: dict[str, list[tuple[str, list[str]]]] = {}
    for operation, overloads in packets.items():
        camel = "".join(part.title() for part in operation.split("_")) + "Backward"
        camel = camel.replace("ForwardBackward", "Backward")
        nodes.setdefault(camel, []).append((f"aten.{operation}", overloads))
    return nodes
