"""What an ensemble yields: the samples, and what they say about every output."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fuzzytorch.digits import Digits, distance, significant
from fuzzytorch.digits.normal import binary64
from fuzzytorch.digits.quantiles import student_quantile
from fuzzytorch.ensemble.summary import summarize

FALSE_ALARM = 1e-3
"""Chance, per leaf, of calling the IEEE value an outlier although it is one more sample."""


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A replica that raised instead of returning: its number and the error, as text."""

    replica: int
    error: str

    @classmethod
    def of(cls, replica: int, error: Exception) -> Failure:
        """The failure that an exception stands for."""
        return cls(replica, describe(error))


def describe(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}"


@dataclasses.dataclass(frozen=True, eq=False)
class Leaf:
    """One output of the computation over all samples.

    Attributes:
        name: its path in the tree, ``output`` for a tree of one leaf.
        values: the samples stacked along axis 0: a tensor for tensors, else a
            numpy array (of dtype ``object`` for strings and anything else).
        reference: the stock value of the leaf, or ``None``.
    """

    name: str
    values: Any
    reference: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.values.shape[1:])

    @property
    def discrete(self) -> bool:
        """True for integers, truth values and strings, which have no significant digits."""
        if isinstance(self.values, torch.Tensor):
            return not (self.values.is_floating_point() or self.values.is_complex())
        return self.values.dtype.kind not in "fc"

    @functools.cached_property
    def moments(self) -> Digits | None:
        """Mean, std and digits per element; ``None`` where there are no numbers."""
        if isinstance(self.values, np.ndarray) and self.values.dtype == object:
            return None
        return significant(self.values, cap=self._cap)

    @property
    def measured(self) -> Digits | None:
        """The moments of a leaf that has significant digits, ``None`` for a discrete one."""
        return None if self.discrete else self.moments

    @property
    def _cap(self) -> float | None:
        # A Python float taken from a binary32 tensor by .item() holds no more
        # digits than the tensor did.
        values = self.values
        if isinstance(values, np.ndarray) and values.shape[1:] == () and values.dtype == float:
            with np.errstate(over="ignore"):
                if np.array_equal(values, values.astype(np.float32), equal_nan=True):
                    return float(24 * np.log10(2))
        return None

    @functools.cached_property
    def z(self) -> Any:
        """Distance of the stock value from the samples in std, per element, or ``None``."""
        if self.measured is None or self.reference is None:
            return None
        return distance(self.reference, self.measured)

    @functools.cached_property
    def excess(self) -> np.ndarray[Any, Any] | None:
        """``z`` with a std of at least one unit in the last place, as a numpy array, or ``None``.

        Samples that agree although some single operation is inexact are common;
        a stock value that differs from them in its last bit is no news.
        """
        if self.z is None or self.moments is None:
            return None
        mean, std = np.asarray(self.moments.mean), np.asarray(self.moments.std)
        unit = 2 * 10.0**-self.moments.cap * np.abs(mean)
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = np.abs(binary64(self.reference) - mean)
            return np.where(gap == 0.0, 0.0, gap / np.maximum(std, unit))

    @property
    def outliers(self) -> int:
        """Elements whose stock value is not one more sample, at :data:`FALSE_ALARM` per leaf.

        The distance :attr:`excess` is held against Student's law, with the number
        of elements taken into account.
        """
        if self.excess is None or self.moments is None:
            return 0
        n = self.moments.count
        limit = student_quantile(FALSE_ALARM / max(1, self.excess.size), n - 1)
        return int(np.count_nonzero(self.excess > limit * np.sqrt(1 + 1 / n)))

    @property
    def changed(self) -> int:
        """Elements that differ between samples."""
        differs = self.values != self.values[:1]
        if isinstance(differs, torch.Tensor):
            return int(differs.any(0).sum())
        return int(np.count_nonzero(np.any(differs, axis=0)))


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """Finished samples of a computation and the circumstances of the run.

    ``values``, ``mean``, ``std``, ``digits``, ``lower``, ``z`` and ``reference`` are trees of
    the structure that the computation returned.

    Attributes:
        leaves: the outputs in the order of the tree.
        structure: how they form the tree.
        mode: the rounding mode.
        seed: the seed used, also when it was drawn: the run can be repeated with it.
        replicas: the replicas of the samples, in their order along axis 0.
        failures: the replicas that raised.
        coverage: what was perturbed, over all replicas.
        notes: remarks on the run itself, for the summary.
    """

    leaves: tuple[Leaf, ...]
    structure: pytree.TreeSpec
    mode: str
    seed: int
    replicas: tuple[int, ...]
    failures: tuple[Failure, ...] = ()
    coverage: Any = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """The number of finished samples."""
        return len(self.replicas)

    @property
    def values(self) -> Any:
        """Per leaf, all samples stacked along axis 0."""
        return self._tree(lambda leaf: leaf.values)

    @property
    def mean(self) -> Any:
        """Per leaf, the float64 mean; ``None`` for strings."""
        return self._tree(lambda leaf: leaf.moments and leaf.moments.mean)

    @property
    def std(self) -> Any:
        """Per leaf, the float64 standard deviation (divisor n - 1); ``None`` for strings."""
        return self._tree(lambda leaf: leaf.moments and leaf.moments.std)

    @property
    def digits(self) -> Any:
        """Per leaf, significant decimal digits per element; ``None`` for discrete leaves."""
        return self._tree(lambda leaf: leaf.measured and leaf.measured.digits)

    @property
    def lower(self) -> Any:
        """Per leaf, the lower bound of the digits (probability, confidence 0.95)."""
        return self._tree(lambda leaf: leaf.measured and leaf.measured.lower)

    @property
    def z(self) -> Any:
        """Per leaf, distance of the stock value from the samples in standard deviations."""
        return self._tree(lambda leaf: leaf.z)

    @property
    def reference(self) -> Any:
        """The stock value, computed without noise; leaves are ``None`` if it was not asked for."""
        return self._tree(lambda leaf: leaf.reference)

    def summary(self) -> str:
        """A table of the outputs, what to know about it, and the coverage, as text."""
        return summarize(self)

    def __repr__(self) -> str:
        return f"<Samples: {len(self)} of mode {self.mode!r}, seed {self.seed}>"

    def _tree(self, read: Callable[[Leaf], Any]) -> Any:
        return pytree.tree_unflatten([read(leaf) for leaf in self.leaves], self.structure)


def stack(values: Sequence[Any]) -> Any:
    """One leaf over all samples, along a new first axis: see :class:`Leaf`.

    Raises:
        ValueError: tensors or arrays of different shapes.
    """
    first = values[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(list(values))
    if isinstance(first, np.ndarray | np.generic | bool | int | float | complex):
        return np.stack(values)
    column = np.empty(len(values), object)
    column[:] = values
    return column
