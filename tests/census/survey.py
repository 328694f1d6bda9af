"""All laws over the samples of one entry, and what they found, as a value."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from census import nearest, stochastic
from census.calls import ERRORS
from census.entries import DTYPES, Entry, entries, error_samples, samples, spread
from fuzzytorch.records import Coverage
from fuzzytorch.table import Verdict

LAWS: Final = (
    "samples",
    "nearest",
    "in place",
    "out=",
    "gradients",
    "refusal",
    "stochastic",
    "pooled",
)
"""The laws by name, in the order in which an entry meets them."""

Progress = Callable[[str, int], None]


@dataclasses.dataclass(frozen=True)
class Finding:
    """A law that does not hold.

    Attributes:
        law: one of :data:`LAWS`, or how a process ended.
        sample: its number among the samples of the law; -1 where all of them together failed.
        what: one sentence or more.
    """

    law: str
    sample: int
    what: str


@dataclasses.dataclass(frozen=True)
class Survey:
    """What the laws found in one entry.

    Attributes:
        entry: the operation and dtype.
        findings: what does not hold.
        coverage: of its calls in nearest rounding.
        samples: how many were run.
        compared: elements held against stock torch.
        reordered: those of them beyond the tolerance of PyTorch's own tests.
        means: elements whose mean was held against binary64.
        seconds: of processor time.
    """

    entry: Entry
    findings: tuple[Finding, ...] = ()
    coverage: Coverage = dataclasses.field(default_factory=Coverage)
    samples: int = 0
    compared: int = 0
    reordered: int = 0
    means: int = 0
    seconds: float = 0.0

    @property
    def computes(self) -> bool:
        """Whether the entry does floating-point arithmetic."""
        return self.coverage.operations > 0

    @property
    def weak(self) -> dict[str, Verdict]:
        """The operations inside whose scalar operations are not rounded one by one."""
        strong = (Verdict.EXACT, Verdict.ROUNDED, Verdict.LOWERED)
        found = [r for r in self.coverage.records if r.operations and r.verdict not in strong]
        return {r.name: r.verdict for r in found}

    def to_json(self) -> dict[str, Any]:
        """The survey as a value for :mod:`json`."""
        return {**dataclasses.asdict(self), "coverage": self.coverage.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Survey:
        """The survey that :meth:`to_json` described."""
        own = dict(value)
        own["entry"] = Entry(**own["entry"])
        own["findings"] = tuple(Finding(**f) for f in own["findings"])
        own["coverage"] = Coverage.from_json(own["coverage"])
        return cls(**own)


def survey(
    entry: Entry, wanted: int | None = None, drawn: bool = True, progress: Progress | None = None
) -> Survey:
    """Runs the laws on ``wanted`` samples of each kind, on all if ``None``.

    Args:
        entry: the operation and dtype.
        wanted: how many samples; which ones depends on the name of the entry alone.
        drawn: whether the law of stochastic rounding is among them.
        progress: told the law and the number of the sample before each is run.
    """
    start = time.process_time()
    seen, pool = nearest.Seen(), stochastic.Pool()
    findings, count = [], 0
    for law, i, run in _calls(entry, wanted, drawn, seen, pool):
        count += law == "nearest"
        if progress is not None:
            progress(law, i)
        try:
            findings += [Finding(law, i, what) for what in run()]
        except ERRORS as error:
            findings.append(Finding(law, i, "".join(traceback.format_exception(error)[-4:])))
    return Survey(
        entry,
        tuple(findings),
        seen.coverage,
        count,
        seen.compared,
        seen.reordered,
        pool.compared,
        time.process_time() - start,
    )


def _calls(
    entry: Entry, wanted: int | None, drawn: bool, seen: nearest.Seen, pool: stochastic.Pool
) -> Iterator[tuple[str, int, Callable[[], Iterator[str]]]]:
    """The law, the number of the sample and the comparison, one after the other."""
    plain = samples(entry, False)
    for i in spread(entry, len(plain), wanted):
        yield "nearest", i, lambda s=plain[i]: nearest.forward(entry, s, seen)
        yield "in place", i, lambda s=plain[i]: nearest.in_place(entry, s, seen)
        yield "out=", i, lambda s=plain[i]: nearest.into_targets(entry, s, seen)
    if entry.differentiable:
        plain = samples(entry, True)
        for i in spread(entry, len(plain), wanted):
            yield "gradients", i, lambda s=plain[i]: nearest.backward(entry, s, seen)
    if entry.dtype_name == _dtypes_of(entry)[0]:
        refused = error_samples(entry)
        for i in spread(entry, len(refused), wanted):
            yield "refusal", i, lambda s=refused[i]: nearest.refusal(entry, s)
    if drawn:
        for i in spread(entry, len(plain), wanted):
            yield "stochastic", i, lambda s=plain[i]: stochastic.law(entry, s, pool)
        yield "pooled", -1, lambda: pool.verdicts(entry)


def _dtypes_of(entry: Entry) -> list[str]:
    return [e.dtype_name for e in entries(DTYPES, entry.name)]
