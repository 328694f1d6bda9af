"""The same seed gives the same bits, whatever the machine does around the computation."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from representative_operations import OPERATIONS, Operation, guarded
from torch.nn import functional as F

import fuzzytorch as ft
from fuzzytorch.backends import EXTENSION
from fuzzytorch.rounding import MODES, Rounding

pytest.importorskip(EXTENSION, reason="the native kernels were not built")

from fuzzytorch.backends import cpu

RANDOM_MODES: Final = tuple(mode for mode in MODES if Rounding(mode).draws)
SEED: Final = 21


@pytest.fixture
def use_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def use_isa() -> Iterator[Callable[[str], None]]:
    before = cpu.isa()
    yield cpu.select_isa
    cpu.select_isa(before)


Layout = Callable[[torch.Tensor], torch.Tensor]


def contiguous(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous()


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def strided(x: torch.Tensor) -> torch.Tensor:
    return guarded(x, "strided")[0]


def transposed(x: torch.Tensor) -> torch.Tensor:
    return guarded(x, "transposed")[0]


def transposed_kernels(x: torch.Tensor) -> torch.Tensor:
    """Without the matrices: by their strides, autograd asks for another product in the backward."""
    return transposed(x) if x.dim() == 4 else x


class Network(torch.nn.Module):
    """Convolutions, batch normalization, both poolings, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(16)
        self.second = torch.nn.Conv2d(16, 12, 3, stride=2, groups=2)
        self.hidden = torch.nn.Linear(12 * 9, 50)
        self.last = torch.nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = F.avg_pool2d(F.gelu(self.second(x)), 2)
        return self.last(torch.tanh(self.hidden(x.flatten(1))))


def train(
    mode: str, layout: Layout, weights: Layout = contiguous, seed: int = SEED, replica: int = 0
) -> dict[str, torch.Tensor]:
    """All results of two steps of training, by name; the initial state is always the same."""
    torch.manual_seed(0)
    net = Network()
    x, labels = layout(torch.randn(24, 3, 28, 28)), torch.arange(24) % 10
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.set_(weights(parameter.detach()))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=0.01)
    results: dict[str, torch.Tensor] = {}
    with ft.fuzzy(mode, seed=seed, replica=replica):
        for step in range(2):
            optimizer.zero_grad()
            inputs = x.detach().requires_grad_()
            loss = F.cross_entropy(net(inputs), labels)
            loss.backward()
            optimizer.step()
            results |= {
                f"loss {step}": loss.detach(),
                f"gradient of the images {step}": inputs.grad,
            }
            for name, parameter in net.named_parameters():
                results[f"gradient of {name} {step}"] = parameter.grad.clone()
    return results | {name: value.clone() for name, value in net.state_dict().items()}


def differing(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> list[str]:
    """Names of what differs in any bit."""
    assert a.keys() == b.keys()
    return [name for name in a if not torch.equal(a[name], b[name])]


@pytest.fixture(scope="module")
def trained() -> dict[str, dict[str, torch.Tensor]]:
    """The expected results, by mode: one thread, contiguous."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    results = {mode: train(mode, contiguous) for mode in RANDOM_MODES}
    torch.set_num_threads(before)
    return results


Trained = dict[str, dict[str, torch.Tensor]]


@pytest.mark.parametrize("mode", RANDOM_MODES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_training_gives_the_same_bits_for_any_number_of_threads(
    count: int, mode: str, trained: Trained, use_threads: Callable[[int], None]
) -> None:
    use_threads(count)
    assert differing(train(mode, contiguous), trained[mode]) == []


@pytest.mark.parametrize("mode", RANDOM_MODES)
@pytest.mark.parametrize("isa", cpu.available_isas())
def test_training_gives_the_same_bits_for_every_instruction_set(
    isa: str, mode: str, trained: Trained, use_isa: Callable[[str], None]
) -> None:
    use_isa(isa)
    assert differing(train(mode, contiguous), trained[mode]) == []


@pytest.mark.parametrize("mode", RANDOM_MODES)
@pytest.mark.parametrize("weights", [contiguous, channels_last, transposed_kernels])
@pytest.mark.parametrize("layout", [contiguous, channels_last, strided, transposed])
def test_training_gives_the_same_bits_for_any_memory_layout(
    layout: Layout, weights: Layout, mode: str, trained: Trained
) -> None:
    assert differing(train(mode, layout, weights), trained[mode]) == []


@pytest.mark.parametrize("mode", RANDOM_MODES)
def test_the_forward_pass_gives_the_same_bits_for_transposed_matrices(mode: str) -> None:
    torch.manual_seed(0)
    net, x = Network(), torch.randn(24, 3, 28, 28)
    with torch.no_grad():
        with ft.fuzzy(mode, seed=SEED):
            expected = net(x)
        for parameter in net.parameters():
            parameter.set_(transposed(parameter.detach()))
        with ft.fuzzy(mode, seed=SEED):
            assert torch.equal(net(x), expected)


def test_a_seed_and_a_replica_change_every_result_of_training(trained: Trained) -> None:
    expected = trained["sr"]
    for name in ({"seed": SEED + 1}, {"replica": 1}):
        other = train("sr", contiguous, **name)
        # Of a single number, as the loss, two draws may well agree.
        several = {name for name, value in expected.items() if value.numel() > 1}
        assert several <= set(differing(other, expected))


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_large_operations_give_the_same_bits_for_any_number_of_threads(
    operation: Operation, count: int, use_threads: Callable[[int], None]
) -> None:
    x = operation.operands(4099 if operation.family in ("pointwise", "reduction") else 401)
    results = []
    for threads in (1, count):
        use_threads(threads)
        with ft.fuzzy("sr", seed=SEED):
            results.append(operation.run(*x))
    assert torch.equal(*results)


TO_ONE_NUMBER: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "variance": torch.var,
    "mean beside the variance": lambda x: torch.var_mean(x)[1],
    "mean beside the deviation": lambda x: torch.std_mean(x, (0, 1, 2), keepdim=True)[1],
    "mean of one channel": lambda x: torch.native_batch_norm(
        x, None, None, None, None, True, 0.1, 1e-5
    )[1],
}
"""Reductions that stock torch computes in binary64, and we with it."""


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", TO_ONE_NUMBER)
def test_binary64_reductions_to_one_number_give_the_same_bits_for_any_number_of_threads(
    name: str, count: int, use_threads: Callable[[int], None]
) -> None:
    # The mean is 0 but for errors of binary64, which depend on the order of the additions.
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(100_000, generator=generator)
    half *= torch.exp(6 * torch.randn(100_000, generator=generator))
    order = torch.randperm(200_000, generator=generator)
    x = torch.cat([half, -half])[order].view(200, 1, 1000)
    results = []
    for threads in (1, count):
        use_threads(threads)
        with ft.fuzzy("sr", seed=SEED):
            results.append(TO_ONE_NUMBER[name](x))
    assert torch.equal(*results)


@pytest.mark.parametrize("mode", RANDOM_MODES)
@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.batched], ids=str)
def test_the_first_items_of_a_batch_keep_their_bits_when_the_batch_grows(
    operation: Operation, mode: str
) -> None:
    for large, small in ((7, 3), (70, 33), (4, 1)):
        x = operation.operands(large)
        with ft.fuzzy(mode, seed=SEED):
            whole = operation.run(*x)
        prefix = [v[:small] if i < operation.batched else v for i, v in enumerate(x)]
        with ft.fuzzy(mode, seed=SEED):
            part = operation.run(*prefix)
        assert torch.equal(part, whole[:small])


def test_a_network_in_evaluation_gives_the_same_bits_for_the_first_items_of_a_batch() -> None:
    torch.manual_seed(0)
    net, x = Network().eval(), torch.randn(7, 3, 28, 28)
    with ft.fuzzy("sr", seed=SEED):
        whole = net(x)
    with ft.fuzzy("sr", seed=SEED):
        part = net(x[:3])
    assert torch.equal(part, whole[:3])


def fingerprint() -> str:
    """A hash over every mode, every operation and a training."""
    digest = hashlib.sha256()
    for mode in RANDOM_MODES:
        for operation in OPERATIONS:
            with ft.fuzzy(mode, seed=SEED, replica=2):
                digest.update(operation.run(*operation.operands(33)).contiguous().numpy().tobytes())
        for result in train(mode, contiguous).values():
            digest.update(result.contiguous().numpy().tobytes())
    return digest.hexdigest()


def unseeded() -> list[float]:
    with ft.fuzzy("sr"):
        return (torch.linspace(0.5, 3.0, 100) * 0.1).tolist()


SCRIPT: Final = """
import json
import test_reproducibility as laws
print(json.dumps([laws.cpu.isa(), laws.fingerprint(), laws.unseeded()]))
"""


def in_fresh_processes(*variables: dict[str, str]) -> list[Any]:
    """What the script prints in processes with these environment variables, at the same time."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    processes = [
        subprocess.Popen(
            command, cwd=Path(__file__).parent, env=os.environ | v, stdout=subprocess.PIPE
        )
        for v in variables
    ]
    return [json.loads(process.communicate()[0]) for process in processes]


def test_fresh_processes_give_the_same_bits_with_a_seed_and_others_without() -> None:
    slowest = cpu.available_isas()[-1]
    first, second = in_fresh_processes(
        {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2", "FUZZYTORCH_ISA": slowest}
    )
    assert second[0] == slowest
    assert first[1] == second[1] == fingerprint()
    assert first[2] != second[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_child_that_enters_a_mode_of_its_own_gives_the_same_bits(
    use_threads: Callable[[int], None],
) -> None:
    x = torch.rand(200, 300, generator=torch.Generator().manual_seed(1))

    def work() -> bytes:
        # Large enough for several native threads, which the child must start again.  No step
        # uses the threads of torch itself, which hang in a forked child, also in stock torch.
        with ft.fuzzy("sr", seed=SEED):
            return ((x @ x.T) / 3.0).sum(1).numpy().tobytes()

    use_threads(2)
    expected = work()
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(sending, "wb") as stream:
            stream.write(work())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as stream:
        received = stream.read()
    assert os.waitpid(child, 0)[1] == 0
    assert received == expected


X: Final = torch.linspace(0.5, 3.0, 2000)


def drawn(**arguments: Any) -> torch.Tensor:
    with ft.fuzzy("sr", **arguments):
        return (X * 0.1).sqrt()


def test_two_runs_without_a_seed_differ_and_their_seeds_repeat_them() -> None:
    modes = [ft.fuzzy("sr"), ft.fuzzy("sr")]
    results = []
    for mode in modes:
        with mode:
            results.append((X * 0.1).sqrt())
    assert modes[0].seed != modes[1].seed
    assert not torch.equal(*results)
    for mode, result in zip(modes, results, strict=True):
        assert torch.equal(drawn(seed=mode.seed), result)


def test_seeds_and_replicas_name_different_streams() -> None:
    names = [(s, r) for s in (0, 1, 2, 2**63, 2**64 - 1) for r in (0, 1, 2, 2**64 - 1)]
    results = {tuple(drawn(seed=s, replica=r).tolist()) for s, r in names}
    assert len(results) == len(names)
    for s, r in names:
        assert tuple(drawn(seed=s, replica=r).tolist()) in results


def test_entering_a_mode_again_continues_its_draws() -> None:
    mode = ft.fuzzy("sr", seed=SEED)
    parts = []
    for _ in range(3):
        with mode:
            parts.append(X * 0.1)
    with ft.fuzzy("sr", seed=SEED):
        whole = [X * 0.1 for _ in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(parts, whole, strict=True))
    assert len({tuple(y.tolist()) for y in parts}) == 3


def test_exact_operations_in_between_do_not_shift_the_draws() -> None:
    with ft.fuzzy("sr", seed=SEED):
        X * 0.1
        expected = X * 0.3
    with ft.fuzzy("sr", seed=SEED):
        X * 0.1
        torch.rand(5)
        (X > 1).nonzero()
        X.view(40, 50).T.contiguous().clone()
        assert torch.equal(X * 0.3, expected)
