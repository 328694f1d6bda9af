"""What a profile says of every call of a module, as values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fuzzytorch.ensemble.samples import Failure
from fuzzytorch.locate.places import Place
from fuzzytorch.records import Coverage
from fuzzytorch.text import aligned

_HEADER: Final = ("module", "class", "call", "in", "out", "lost", "own", "minimum", "std")
_LEGEND: Final = (
    "in, out: significant decimal digits of what a module takes and returns, as a whole; lost: the",
    "difference; own: lost, but not in the modules that it calls; minimum: the worst element of",
    "the output; std: the largest of an element of the output",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """The floating-point tensors that go into a call, or come out of it, over all samples.

    Attributes:
        digits: significant decimal digits of the worst tensor as a whole
            (:attr:`fuzzytorch.digits.Digits.overall`); ``None`` where there is no such tensor, or
            no element that is finite in every sample.
        mean: digits of an element, the mean over those of all tensors; ``None`` likewise.
        minimum: digits of the worst element; ``None`` likewise.
        std: the largest standard deviation of an element; ``None`` likewise.
        nan, inf: elements that are NaN or infinite, added up over the samples.
        elements: elements of one sample.
        followed: how many of them the digits were measured on.
    """

    digits: float | None
    mean: float | None
    minimum: float | None
    std: float | None
    nan: int
    inf: int
    elements: int
    followed: int


@dataclasses.dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module; a module that is called several times has as many.

    Attributes:
        place: which module.
        number: which of its calls in a sample, from 1.
        around: the position in :attr:`Profile.calls` of the call around it, or ``None``.
        samples: in how many samples it returned tensors alike.
        inputs: what it was given.
        outputs: what it returned.
        own: digits lost in it, but not in the modules that it calls: what is lost less what is
            lost in each of those; ``None`` where :attr:`lost` is.
    """

    place: Place
    number: int
    around: int | None
    samples: int
    inputs: Flow
    outputs: Flow
    own: float | None

    @property
    def lost(self) -> float | None:
        """Digits of the inputs less digits of the outputs; ``None`` where one is not known."""
        if self.inputs.digits is None or self.outputs.digits is None:
            return None
        return self.inputs.digits - self.outputs.digits


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """Where a computation loses digits: an immutable value, printed as a table.

    Attributes:
        calls: the calls of modules, in the order in which they begin.
        mode: the rounding mode.
        seed: the seed used, also when it was drawn.
        replicas: the replicas that finished.
        failures: those that raised; what they had computed until then is in ``calls``.
        coverage: what was perturbed, over all replicas.
        notes: remarks on what the profile leaves out.
    """

    calls: tuple[ModuleCall, ...]
    mode: str
    seed: int
    replicas: tuple[int, ...]
    failures: tuple[Failure, ...] = ()
    coverage: Coverage | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text()

    def worst(self, count: int = 1) -> tuple[ModuleCall, ...]:
        """The calls that lose most digits of their own, the worst first."""
        known = [call for call in self.calls if call.own is not None]
        return tuple(sorted(known, key=lambda call: -(call.own or 0.0))[:count])

    def headline(self) -> str:
        """One sentence: which call loses most."""
        for call in self.worst():
            if call.own is not None and call.own > 0:
                return (
                    f"most digits are lost in {call.place.described}, call {call.number}: "
                    f"{_number(call.inputs.digits)} go in, "
                    f"{_number(call.outputs.digits)} come out."
                )
        return "no call of a module loses digits."

    def text(self, most: int | None = None) -> str:
        """The headline, a table of the calls in their order, remarks and the coverage.

        Args:
            most: show only so many calls, those that lose most of their own.
        """
        chosen = self.calls if most is None else set(self.worst(most))
        shown = [call for call in self.calls if call in chosen]
        title = f"{len(self.replicas)} samples, mode {self.mode}, seed {self.seed}"
        lines = [title, self.headline()]
        if shown:
            spoilt = any(c.outputs.nan or c.outputs.inf for c in shown)
            header = (*_HEADER, "NaN", "Inf") if spoilt else _HEADER
            rows = [header, *(_row(call)[: len(header)] for call in shown)]
            lines += ["", *aligned(rows, range(2, len(header))), "", *_LEGEND]
        remarks = list(self._remarks(len(shown)))
        if remarks:
            lines += ["", *(f"! {remark}" for remark in remarks)]
        if self.coverage is not None:
            lines += ["", f"coverage: {self.coverage.headline()}"]
        return "\n".join(lines)

    def _remarks(self, shown: int) -> Iterator[str]:
        if shown < len(self.calls):
            yield f"{len(self.calls) - shown} of {len(self.calls)} calls are not shown."
        if self.failures:
            total = len(self.replicas) + len(self.failures)
            first = self.failures[0]
            yield (
                f"{len(self.failures)} of {total} samples failed, and count as far as they came; "
                f"the first, replica {first.replica}: {first.error}"
            )
        yield from self.notes

    def to_json(self) -> dict[str, Any]:
        """The profile as a value for :mod:`json`."""
        return {
            "mode": self.mode,
            "seed": self.seed,
            "replicas": list(self.replicas),
            "headline": self.headline(),
            "calls": [{**dataclasses.asdict(call), "lost": call.lost} for call in self.calls],
            "failures": [dataclasses.asdict(failure) for failure in self.failures],
            "coverage": None if self.coverage is None else self.coverage.to_json(),
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Profile:
        """The profile that :meth:`to_json` described."""
        coverage = value["coverage"]
        return cls(
            calls=tuple(map(_call, value["calls"])),
            mode=value["mode"],
            seed=value["seed"],
            replicas=tuple(value["replicas"]),
            failures=tuple(Failure(**failure) for failure in value["failures"]),
            coverage=None if coverage is None else Coverage.from_json(coverage),
            notes=tuple(value["notes"]),
        )


def _call(value: Mapping[str, Any]) -> ModuleCall:
    fields = {name: x for name, x in value.items() if name != "lost"}
    fields["place"] = Place(**fields["place"])
    fields["inputs"], fields["outputs"] = Flow(**fields["inputs"]), Flow(**fields["outputs"])
    return ModuleCall(**fields)


def _row(call: ModuleCall) -> tuple[str, ...]:
    out = call.outputs
    return (
        str(call.place),
        call.place.kind,
        str(call.number),
        _number(call.inputs.digits),
        _number(out.digits),
        _number(call.lost),
        _number(call.own),
        _number(out.minimum),
        "" if out.std is None else f"{out.std:.1e}",
        str(out.nan or ""),
        str(out.inf or ""),
    )


def _number(x: float | None) -> str:
    # No minus before a zero.
    return "" if x is None else f"{round(x, 2) + 0.0:.2f}"
