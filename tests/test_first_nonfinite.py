"""Laws of the report on Inf and NaN: which operation and module, and whether rounding decides."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fuzzytorch as ft
from fuzzytorch.locate import NonFinite, origins

STOCK_CALL = nn.Module.__call__
LARGE = torch.full((3,), 1e30)


@pytest.fixture(autouse=True)
def _nothing_stays_behind() -> Iterator[None]:
    yield
    assert nn.Module.__call__ is STOCK_CALL
    assert torch._C._len_torch_dispatch_stack() == 0


def report(fn: Callable[[], Any], n: int = 3, **options: Any) -> NonFinite:
    return ft.first_nonfinite(fn, n=n, seed=0, **options)


def met(found: NonFinite) -> list[tuple[str, str, str]]:
    return [(o.value, o.operation, o.cause) for o in found.origins]


OVERFLOW, DIVISION = origins.OVERFLOW, origins.DIVISION
INVALID, INFINITE = origins.INVALID, origins.INFINITE


def in_place() -> None:
    y = LARGE * 1.0
    y.mul_(LARGE)


def into_a_target() -> None:
    torch.mul(LARGE, LARGE, out=torch.full((3,), math.nan))


def all_at_once() -> None:
    torch._foreach_mul_([torch.ones(2), LARGE.clone()], 1e30)


MASKED = torch.full((2, 2), -math.inf)


@pytest.mark.parametrize(
    ("fn", "value", "operation", "cause"),
    [
        (lambda: LARGE * LARGE, "Inf", "aten.mul.Tensor", OVERFLOW),
        (lambda: LARGE @ LARGE, "Inf", "aten.dot.default", OVERFLOW),
        (in_place, "Inf", "aten.mul_.Tensor", OVERFLOW),
        (into_a_target, "Inf", "aten.mul.out", OVERFLOW),
        (all_at_once, "Inf", "aten._foreach_mul_.Scalar", OVERFLOW),
        (lambda: torch.full((2,), 7e4).half(), "Inf", "aten._to_copy.default", OVERFLOW),
        (lambda: torch.arange(3.0).log(), "Inf", "aten.log.default", DIVISION),
        (lambda: torch.ones(3) / torch.arange(3.0), "Inf", "aten.div.Tensor", DIVISION),
        (lambda: torch.complex(LARGE, LARGE) * LARGE, "Inf", "aten.mul.Tensor", OVERFLOW),
        (lambda: (-torch.arange(3.0)).sqrt(), "NaN", "aten.sqrt.default", INVALID),
        (lambda: torch.zeros(2) / torch.zeros(2), "NaN", "aten.div.Tensor", INVALID),
        (lambda: MASKED.softmax(1), "NaN", "aten._softmax.default", INFINITE),
        (lambda: MASKED.clone().sub_(MASKED), "NaN", "aten.sub_.Tensor", INFINITE),
    ],
)
@pytest.mark.filterwarnings("ignore:.*without perturbation.*:UserWarning")
def test_the_operation_and_its_cause_are_named(
    fn: Callable[[], Any], value: str, operation: str, cause: str
) -> None:
    found = report(fn)
    assert met(found)[0] == (value, operation, cause)
    assert found.origins[0].replicas == (0, 1, 2)
    assert found.origins[0].ieee
    assert found.verdict == f"{cause}, not rounding"


def test_a_number_that_is_subtracted_from_itself_in_place_is_read_before_it_is_written() -> None:
    def run() -> None:
        y = LARGE * LARGE
        y.sub_(y)

    assert met(report(run))[1] == ("NaN", "aten.sub_.Tensor", INFINITE)


@pytest.mark.parametrize(
    "fn",
    [
        lambda: torch.zeros(2, 2).masked_fill(torch.eye(2) > 0, -math.inf).softmax(1),
        lambda: torch.where(torch.ones(2) > 0, torch.tensor(math.inf), 1.0),
        lambda: torch.full((2,), math.nan) + 1,
        lambda: torch.zeros(2).fill_(math.inf),
        lambda: torch.zeros(2).copy_(torch.tensor([math.nan, math.inf])),
        lambda: torch.tensor([math.inf]) * 2,
        lambda: torch.empty(2).normal_(),
        lambda: MASKED.exp(),
    ],
)
def test_what_the_program_put_there_itself_is_no_origin(fn: Callable[[], Any]) -> None:
    found = report(fn)
    assert found.origins == ()
    assert found.verdict == "finite"
    assert "verdict: finite" in found.text()


def test_what_memory_happened_to_hold_is_no_origin() -> None:
    # Deterministic torch fills new memory with NaN, so that nobody relies on it.
    torch.use_deterministic_algorithms(True)
    try:
        assert report(lambda: torch.empty(5).isnan().all()).origins == ()
        assert report(lambda: torch.empty(5).resize_(7).add(1.0)).origins == ()
        assert report(lambda: torch.empty_like(LARGE) * 2).origins == ()
    finally:
        torch.use_deterministic_algorithms(False)


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def test_the_module_is_named_and_only_the_first_of_each_kind() -> None:
    net = nn.Sequential(Scaled(1e5), nn.Sequential(nn.ReLU(), Scaled(1e34)), Scaled(1e34))
    found = report(lambda: net(torch.ones(2)))
    (origin,) = found.origins
    assert origin.place is not None
    assert (origin.place.path, origin.place.kind, origin.place.root) == (
        "1.1",
        "Scaled",
        "Sequential",
    )
    assert origin.node is None
    assert (origin.result, origin.elements) == ("float32, shape 2", 2)
    file, line = origin.line.split(":")
    assert file == "test_first_nonfinite.py"
    assert "x * self.factor" in Path(__file__).read_text("utf-8").splitlines()[int(line) - 1]
    assert "1.1 (Scaled)" in found.text()


def test_an_origin_in_a_backward_pass_belongs_to_the_module_that_it_differentiates() -> None:
    class Length(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.square().sum().sqrt()

    net = nn.Sequential(nn.Linear(3, 3, bias=False), Length())
    nn.init.zeros_(net[0].weight)
    found = report(lambda: net(torch.ones(2, 3)).backward())
    first, second = found.origins
    assert (first.value, first.cause, first.node) == ("Inf", DIVISION, "SqrtBackward0")
    assert (second.value, second.cause) == ("NaN", INFINITE)
    for origin in found.origins:
        assert origin.place is not None
        assert (origin.place.path, origin.place.kind) == ("1", "Length")
    assert "backward (SqrtBackward0)" in found.text()


def test_rounding_decides_where_some_samples_only_overflow() -> None:
    # Halfway between the largest number of float16 and the next power of two: to nearest even, Inf.
    x = torch.tensor(65520.0)
    found = report(lambda: x.half(), n=30)
    (origin,) = found.origins
    assert origin.ieee
    assert 0 < len(origin.replicas) < 30
    assert found.count("Inf") == len(origin.replicas)
    assert found.count("NaN") == 0
    assert found.rounding_decides
    assert found.verdict == "rounding decides"
    for replica in range(30):
        with ft.fuzzy("sr", seed=0, replica=replica):
            assert bool(x.half().isinf()) == (replica in origin.replicas)


def test_rounding_decides_where_the_run_without_noise_alone_differs() -> None:
    found = report(lambda: torch.tensor(65519.0).half(), mode="up")
    assert found.count("Inf") == 3
    assert not found.ieee("Inf")
    assert found.verdict == "rounding decides"
    assert "not in the run without noise" in found.text()


def test_a_run_that_raises_counts_as_far_as_it_came_even_if_all_do() -> None:
    def run() -> None:
        y = LARGE * LARGE
        assert bool(y.isfinite().all()), "planted"

    found = report(run)
    assert found.verdict == "overflow, not rounding"
    assert [failure.replica for failure in found.failures] == [0, 1, 2]
    assert "3 of 3 samples failed" in found.text()
    assert any("without noise failed" in note for note in found.notes)


def test_an_interrupted_run_does_not_count() -> None:
    runs = iter(range(10))

    def run() -> None:
        if next(runs) == 4:
            raise KeyboardInterrupt
        LARGE.square()

    found = report(run, n=9)
    assert found.runs == found.count("Inf") == 3
    assert any("Interrupted" in note for note in found.notes)
    with pytest.raises(KeyboardInterrupt):
        report(lambda: (_ for _ in ()).throw(KeyboardInterrupt()))


def test_the_check_changes_neither_bits_nor_coverage_nor_random_numbers() -> None:
    seen: list[torch.Tensor] = []

    def run() -> torch.Tensor:
        x = torch.rand(20).add_(0.1).requires_grad_()
        y = nn.functional.dropout(x, 0.5).log() * 0.1
        y.exp().sum().backward()
        assert x.grad is not None
        seen.append(torch.cat([y.detach(), x.grad]))
        return seen[-1]

    torch.manual_seed(1)
    state = torch.get_rng_state()
    found = report(run)
    assert found.origins[0].cause == DIVISION
    assert torch.equal(torch.get_rng_state(), state)
    bits = torch.stack(seen[1:])
    samples = ft.sample(run, n=3, seed=0)
    assert torch.equal(bits.nan_to_num(), samples.values.nan_to_num())
    assert torch.equal(seen[0].nan_to_num(), samples.reference.nan_to_num())


def test_it_works_under_another_mode_and_with_modes_and_subclasses_inside() -> None:
    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            return func(*args, **(kwargs or {}))

    def run() -> None:
        with Seeing(), torch.inference_mode():
            LARGE * LARGE

    with ft.fuzzy("ud", seed=1) as around:
        found = report(run)
    assert met(found) == [("Inf", "aten.mul.Tensor", OVERFLOW)]
    assert around.coverage.operations == 0


@pytest.mark.filterwarnings("ignore:.*without perturbation.*:UserWarning")
def test_sparse_and_narrow_results_are_looked_at() -> None:
    sparse = torch.eye(3).to_sparse() * 1e30
    assert met(report(lambda: sparse * 1e30))[0][0] == "Inf"
    large = torch.full((2,), 1e30)
    found = report(lambda: large.to(torch.float8_e5m2))
    assert met(found) == [("Inf", "aten._to_copy.default", OVERFLOW)]


def test_a_report_is_a_value_for_json() -> None:
    net = nn.Sequential(Scaled(1e30), Scaled(1e30))
    found = report(lambda: (net(torch.ones(2)) * 0.0).sum())
    value = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert NonFinite.from_json(value) == found
    assert value["verdict"] == found.verdict


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be called"):
        ft.first_nonfinite(torch.ones(2))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*runs eagerly.*:UserWarning")
def test_what_is_compiled_runs_eagerly_without_noise_too() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, examples: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda x: (x * x).sum(), backend=backend)
    assert report(lambda: compiled(LARGE)).origins[0].ieee
    assert graphs == []
    compiled(LARGE)
    assert len(graphs) == 1
