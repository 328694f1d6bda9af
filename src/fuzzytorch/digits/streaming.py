"""Moments of samples that come one at a time and are not kept.

Welford, "Note on a method for calculating corrected sums of squares and products",
Technometrics 4(3), 1962: with the mean ``m`` and the sum ``q`` of squared deviations of the
samples so far, one more ``x`` makes them ``m + d / n`` and ``q + d (x - m - d / n)``, where
``d = x - m``.  Equal samples leave ``q`` at exactly zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuzzytorch.digits.normal import Array, Digits, binary64, estimate
from fuzzytorch.digits.normal import cap as cap_of


class Running:
    """The moments, in binary64, of the samples added so far: 24 bytes an element for any number.

    Attributes:
        count: number of samples.
    """

    def __init__(self) -> None:
        self.count = 0
        self._cap = 0.0
        self._mean: Any = None
        self._squares: Any = None
        self._nonfinite: Any = None

    def add(self, sample: Array) -> None:
        """Takes one more sample: a tensor or numpy array, of the shape and dtype of the others.

        Raises:
            ValueError: another shape than that of the first.
        """
        number = binary64(sample)
        if self.count == 0:
            self._cap = cap_of(sample)
            self._mean = np.zeros(number.shape)
            self._squares = np.zeros(number.shape)
            self._nonfinite = np.zeros(number.shape, np.int64)
        if number.shape != self._mean.shape:
            raise ValueError(
                f"a sample of shape {number.shape} was added to samples of shape "
                f"{self._mean.shape}: samples of one result must be alike."
            )
        self.count += 1
        with np.errstate(invalid="ignore", over="ignore"):
            self._nonfinite += ~np.isfinite(number)
            deviation = number - self._mean
            mean = self._mean + deviation / self.count
            # Inf - Inf would be NaN, where the mean of samples with Inf among them is Inf.
            sound = np.isfinite(self._mean)
            self._mean = mean if sound.all() else np.where(sound, mean, self._mean + number)
            self._squares = self._squares + deviation * (number - self._mean)

    def digits(self, *, probability: float = 0.95, confidence: float = 0.95) -> Digits:
        """The significant digits of the samples so far, as numpy arrays.

        Raises:
            ValueError: fewer than two samples, or a probability outside ``(0, 1)``.
        """
        if self.count < 2:
            raise ValueError(
                f"significant digits need at least two samples, got {self.count}: "
                "run the program again under another replica."
            )
        return estimate(
            self.count,
            self._mean,
            np.sqrt(self._squares / (self.count - 1)),
            self._nonfinite,
            cap=self._cap,
            probability=probability,
            confidence=confidence,
        )
