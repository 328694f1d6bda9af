"""Processes that survey entries: one that dies or hangs costs its entry alone, by name."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, Final

import torch

from census.entries import Entry
from census.survey import LAWS, Finding, Survey, survey

_CONTEXT: Final = multiprocessing.get_context("spawn")
_POLL: Final = 5.0
"""Seconds between two looks at how long each worker has been busy."""

Job = tuple[Entry, int | None, bool]
"""The arguments of :func:`~census.survey.survey`."""


class _Worker:
    def __init__(self) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        self.place = _CONTEXT.Array("i", [0, -1], lock=False)
        self.process = _CONTEXT.Process(target=_work, args=(theirs, self.place), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.since = 0.0

    def start(self, job: Job) -> None:
        self.job, self.since = job, time.monotonic()
        self.connection.send(job)

    def lost(self, how: str) -> Survey:
        """Ends the process; what it was at stands for the survey."""
        assert self.job is not None
        self.stop()
        law, sample = LAWS[self.place[0]], self.place[1]
        return Survey(self.job[0], (Finding(law, sample, how),))

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()


def surveys(jobs: Iterable[Job], workers: int = 2, limit: float = 900.0) -> Iterator[Survey]:
    """The surveys of jobs, in the order in which they are done.

    Args:
        jobs: arguments of :func:`~census.survey.survey`.
        workers: processes, each with one thread.
        limit: seconds after which a job is given up.
    """
    left = iter(jobs)
    pool = [_Worker() for _ in range(workers)]
    try:
        busy = [w for w in pool if _next(w, left)]
        while busy:
            ready = wait([w.connection for w in busy], timeout=_POLL)
            for worker in list(busy):
                if worker.connection in ready:
                    found = _received(worker)
                elif time.monotonic() - worker.since > limit:
                    found = worker.lost(f"not done after {limit:.0f} s")
                else:
                    continue
                busy.remove(worker)
                pool.remove(worker)
                other = _Worker() if worker.connection.closed else worker
                pool.append(other)
                if _next(other, left):
                    busy.append(other)
                yield found
    finally:
        for worker in pool:
            worker.stop()


def _next(worker: _Worker, left: Iterator[Job]) -> bool:
    job = next(left, None)
    if job is not None:
        worker.start(job)
    return job is not None


def _received(worker: _Worker) -> Survey:
    try:
        found: Survey = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        return worker.lost(f"the process died with exit status {worker.process.exitcode}")
    return found


def _work(connection: Connection, place: Any) -> None:
    torch.set_num_threads(1)

    def at(law: str, sample: int) -> None:
        place[0], place[1] = LAWS.index(law), sample

    while True:
        try:
            entry, wanted, drawn = connection.recv()
        except EOFError:
            return
        at("samples", -1)
        connection.send(survey(entry, wanted, drawn, at))
