"""Where a computation loses its digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzytorch.ensemble.sampling import sample
from fuzzytorch.locate.calls import Profile
from fuzzytorch.locate.recorder import Recorder


def profile(
    fn: Callable[[], Any],
    n: int = 10,
    mode: str = "sr",
    seed: int | None = None,
    *,
    elements: int = 2**14,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> Profile:
    """Runs ``fn()`` n times as :func:`fuzzytorch.sample` does, and measures every call of a module.

    Of every floating-point tensor that a module takes or returns, the mean and the standard
    deviation of each element are kept, in binary64, and not the samples: 24 bytes an element, for
    any ``n``.  Reading them perturbs nothing, draws nothing and counts nothing: the samples
    have the bits of those of :func:`fuzzytorch.sample` with the same seed.  Only calls on the
    thread of the caller are seen, and ``module.forward(x)`` is no call of a module.  Nothing stays
    behind on the modules.  Integers, sparse and nested tensors and subclasses of tensors are
    not followed.  Calls are matched between samples by the module and by their number, so that a
    program whose calls depend on its numbers may have entries that compare different things.

    Args:
        fn, n, mode, seed, progress, options: as for :func:`fuzzytorch.sample`.
        elements: how many elements of a tensor are followed, at least 1; of a larger tensor those
            at fixed positions spread over it.  NaN and Inf are counted among all.  Once
            :data:`fuzzytorch.locate.recorder.BUDGET` elements are followed, further calls
            are left out, which a note says.

    Returns:
        The calls with their digits; print it for a table.  A run that raises counts as far as it
        came.

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`fuzzytorch.sample` says.
        ValueError: ``elements`` is no positive integer.
    """
    if isinstance(elements, bool) or not isinstance(elements, int) or elements < 1:
        raise ValueError(f"elements={elements!r} follows nothing: give an integer of at least 1.")
    if not callable(fn):
        raise TypeError(f"fn={fn!r} cannot be called: give a function that computes one sample.")
    recorder = Recorder(elements)

    def run() -> None:
        with recorder:
            fn()

    samples = sample(run, n, mode, seed, reference=False, progress=progress, **options)
    return Profile(
        calls=recorder.calls(),
        mode=samples.mode,
        seed=samples.seed,
        replicas=samples.replicas,
        failures=samples.failures,
        coverage=samples.coverage,
        notes=(*samples.notes, *recorder.notes()),
    )
