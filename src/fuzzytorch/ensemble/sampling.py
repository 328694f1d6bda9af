"""Repeated runs of a callable, each under its own random bits."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fuzzytorch.active import stock
from fuzzytorch.ensemble.samples import Failure, Leaf, Samples, describe, stack
from fuzzytorch.fuzzy import fuzzy


def sample(
    fn: Callable[[], Any],
    n: int = 10,
    mode: str = "sr",
    seed: int | None = None,
    *,
    reference: bool = True,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> Samples:
    """Runs ``fn()`` n times; only the rounding differs from one run to the next.

    Run ``i`` takes place under ``fuzzytorch.fuzzy(mode=mode, seed=seed, replica=i)``.  The
    generators of ``torch`` (CPU), ``numpy.random`` and ``random`` are put back to the same
    state before every run, so that dropout, initial weights and shuffling are the
    same in each, and once more at the end.  What ``fn`` itself changes (weights
    that it trains, say) is not undone: copy it inside ``fn``.  A mode that is active around
    this call touches neither the samples nor the run without noise.

    Args:
        fn: returns any tree (tuples, lists, dicts, as torch knows them) of tensors,
            numpy arrays, numbers and strings, of one structure and shapes in all runs.
        n: number of samples, at least 2.
        mode: rounding mode.
        seed: of the ensemble; drawn if ``None``, and in the result either way.
        reference: run ``fn`` once more, first and without noise, so that the distance
            of the IEEE value from the samples is known.
        progress: called with the number of runs done, after each.
        options: further arguments of :func:`fuzzytorch.fuzzy` (``format``, ``strict``, ...).

    Returns:
        The samples.  A run that raises is recorded among ``failures`` and the others
        go on; after an interruption from the keyboard the finished samples are
        returned, with a note, if there are at least two.

    Raises:
        TypeError: ``fn`` cannot be called.
        ValueError: fewer than two samples asked for, or what ``fuzzytorch.fuzzy`` refuses.
        RuntimeError: fewer than two runs finished; its cause is the first failure.
    """
    if not callable(fn):
        raise TypeError(f"fn={fn!r} cannot be called: give a function that computes one sample.")
    if isinstance(n, bool) or not isinstance(n, int) or n < 2:
        raise ValueError(f"n={n!r} samples show no scatter: ask for an integer of at least 2.")
    seed = fuzzy(mode=mode, seed=seed, **options).seed
    run = _Run(fn, mode, seed, options)
    if reference:
        run.stock()
    notes: tuple[str, ...] = ()
    try:
        for replica in range(n):
            run.replica(replica)
            if progress is not None:
                progress(replica + 1)
    except KeyboardInterrupt:
        if len(run.trees) < 2:
            raise
        notes = (f"Interrupted: {len(run.trees)} of the {n} samples asked for had finished.",)
    finally:
        run.rewind()
    return run.result(notes)


class _Run:
    """The state of one ensemble while it is collected."""

    def __init__(
        self, fn: Callable[[], Any], mode: str, seed: int, options: dict[str, Any]
    ) -> None:
        self.fn, self.mode, self.seed, self.options = fn, mode, seed, options
        self.generators = (torch.get_rng_state(), np.random.get_state(), random.getstate())
        self.trees: dict[int, list[Any]] = {}
        self.failures: list[Failure] = []
        self.cause: Exception | None = None
        self.reference: list[Any] | None = None
        self.names: list[str] = []
        self.structure: pytree.TreeSpec | None = None
        self.coverage: Any = None
        self.notes: list[str] = []

    def rewind(self) -> None:
        """Puts the random generators back to where they stood before the first run."""
        torch.set_rng_state(self.generators[0])
        np.random.set_state(self.generators[1])
        random.setstate(self.generators[2])

    def stock(self) -> None:
        """Runs ``fn`` without noise."""
        try:
            with stock():
                tree = self.fn()
            self.reference = self._flatten(tree)
        except Exception as error:  # noqa: BLE001 - reported; the samples may still succeed
            self.cause = error
            self.notes.append(f"The run without noise failed: {describe(error)}")
        finally:
            self.rewind()

    def replica(self, replica: int) -> None:
        """Runs ``fn`` under the noise of one replica and keeps what it returned or raised."""
        self.rewind()
        context = fuzzy(mode=self.mode, seed=self.seed, replica=replica, **self.options)
        try:
            with context:
                tree = self.fn()
            self.trees[replica] = self._flatten(tree)
        except Exception as error:  # noqa: BLE001 - recorded; the ensemble goes on
            self.cause = self.cause or error
            self.failures.append(Failure.of(replica, error))
        seen = context.coverage
        self.coverage = seen if self.coverage is None else self.coverage.merge(seen)

    def result(self, notes: tuple[str, ...]) -> Samples:
        if len(self.trees) < 2:
            total = len(self.trees) + len(self.failures)
            raise RuntimeError(
                f"only {len(self.trees)} of {total} samples finished, and two are needed. "
                f"The first failure, in replica {self.failures[0].replica}: "
                f"{self.failures[0].error}"
            ) from self.cause
        assert self.structure is not None
        leaves = tuple(
            Leaf(name, stack(column), self.reference[i] if self.reference is not None else None)
            for i, (name, *column) in enumerate(zip(self.names, *self.trees.values(), strict=True))
        )
        return Samples(
            leaves=leaves,
            structure=self.structure,
            mode=self.mode,
            seed=self.seed,
            replicas=tuple(self.trees),
            failures=tuple(self.failures),
            coverage=self.coverage,
            notes=(*self.notes, *notes),
        )

    def _flatten(self, tree: Any) -> list[Any]:
        """The leaves of a run, detached from whatever the next run may overwrite."""
        paths, structure = pytree.tree_flatten_with_path(tree)
        leaves = [_snapshot(leaf) for _, leaf in paths]
        kinds = list(map(_kind, leaves))
        if self.structure is None:
            self.structure = structure
            self.names = [pytree.keystr(path) or "output" for path, _ in paths]
            self.kinds = kinds
        elif structure != self.structure:
            raise ValueError(
                f"the run returned the structure {structure}, another one {self.structure}: "
                "samples of one ensemble must be alike."
            )
        for name, kind, expected in zip(self.names, kinds, self.kinds, strict=True):
            if kind != expected:
                raise ValueError(
                    f"{name} is {kind} in this run and {expected} in another: "
                    "samples of one ensemble must be alike."
                )
        return leaves


def _snapshot(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        if leaf.is_nested:
            raise TypeError(
                "fn returned a nested tensor, which has no shape to be stacked in: return its "
                "parts, y.unbind()."
            )
        if leaf.is_meta:
            raise TypeError("fn returned a meta tensor, which holds no numbers to be compared.")
        dense = leaf.detach() if leaf.layout is torch.strided else leaf.detach().to_dense()
        return dense.clone()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _kind(leaf: Any) -> str:
    """What must agree between samples for them to be stacked."""
    if isinstance(leaf, torch.Tensor | np.ndarray):
        return f"{type(leaf).__name__} of {leaf.dtype}, shape {tuple(leaf.shape)}"
    if isinstance(leaf, np.generic | bool | int | float | complex):
        return "a number"
    return "an object"
