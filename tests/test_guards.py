"""Laws of what a mode cannot see: other threads, forked children, compiled callables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import fuzzytorch as ft
from fuzzytorch.guards import FORK_STRIDE, first_call_of_child

X = torch.linspace(0.5, 3.0, 500)
STOCK_START = threading.Thread.start
STOCK_COMPILE = torch.compile


def work():
    return X * 0.1


@pytest.fixture(autouse=True)
def _guards_are_gone():
    yield
    assert threading.Thread.start is STOCK_START
    assert torch.compile is STOCK_COMPILE


def _work_on(_):
    return work()


class TestThreads:
    def test_a_thread_started_under_a_mode_is_warned_about_and_not_perturbed(self):
        results = []
        with ft.fuzzy("up", seed=0):
            thread = threading.Thread(target=lambda: results.append(work()), name="worker")
            with pytest.warns(UserWarning, match="'worker'.*does not inherit"):
                thread.start()
            thread.join()
        assert torch.equal(results[0], work())

    def test_the_warning_comes_once_and_also_from_pools(self):
        with ft.fuzzy("sr", seed=0), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(work).result()
        assert ["does not inherit" in str(w.message) for w in caught] == [True]

    def test_a_thread_that_enters_a_mode_is_perturbed_by_it(self):
        results = []

        def enter():
            with ft.fuzzy("sr", seed=5):
                results.append(work())

        with ft.fuzzy("sr", seed=0) as outer:
            a = work()
            thread = threading.Thread(target=enter)
            with pytest.warns(UserWarning, match="does not inherit"):
                thread.start()
            thread.join()
            b = work()
        with ft.fuzzy("sr", seed=0):
            assert torch.equal(work(), a)
            assert torch.equal(work(), b)
        with ft.fuzzy("sr", seed=5):
            assert torch.equal(work(), results[0])
        assert sum(r.calls for r in outer.coverage.records) == 2

    def test_threads_that_only_carry_data_are_not_warned_about(self):
        import multiprocessing

        with ft.fuzzy("sr", seed=0), warnings.catch_warnings():
            warnings.simplefilter("error")
            queue = multiprocessing.get_context("spawn").Queue()
            queue.put(1)
            assert queue.get(timeout=60) == 1
            queue.close()
            queue.join_thread()

    def test_a_pool_of_forked_processes_is_perturbed_and_not_warned_about(self):
        import multiprocessing

        with ft.fuzzy("up", seed=0), warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", ".*multi-threaded.*fork.*", DeprecationWarning)
            expected = work()
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert all(torch.equal(y, expected) for y in pool.map(_work_on, range(4)))

    def test_a_pool_of_threads_is_warned_about(self):
        from multiprocessing.pool import ThreadPool

        with ft.fuzzy("up", seed=0), pytest.warns(UserWarning, match="does not inherit"):
            pool = ThreadPool(1)
            pool.close()
            pool.join()

    def test_a_process_that_does_not_inherit_the_mode_is_warned_about_once(self):
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        with ft.fuzzy("sr", seed=0), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                process = context.Process(target=print, name="worker")
                process.start()
                process.join()
        assert ["'worker' is started afresh" in str(w.message) for w in caught] == [True]

    def test_a_thread_outside_any_mode_starts_in_silence(self):
        started = threading.Event()
        inside = threading.Event()
        done = threading.Event()

        def hold():
            with ft.fuzzy("sr", seed=0):
                inside.set()
                done.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        assert inside.wait(60)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            other = threading.Thread(target=started.set)
            other.start()
            other.join()
        done.set()
        holder.join()
        assert started.is_set()

    def test_modes_on_several_threads_remove_the_guards_together(self):
        barrier = threading.Barrier(4)

        def enter():
            for _ in range(20):
                with ft.fuzzy("sr", seed=0):
                    barrier.wait(60)
                    work()

        threads = [threading.Thread(target=enter) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def test_one_mode_on_two_threads_never_draws_the_same_numbers_twice(self):
        mode = ft.fuzzy("sr", seed=0)
        results = []

        def enter():
            with mode:
                results.extend(work() for _ in range(50))

        threads = [threading.Thread(target=enter) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({tuple(y.tolist()) for y in results}) == 100


class Perturbed(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return work()


def in_child(function):
    """What a forked child computes."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        # A child that waits for threads of its parent waits for ever.
        signal.alarm(120)
        os.write(sending, function().numpy().tobytes())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as stream:
        data = stream.read()
    os.waitpid(child, 0)
    return torch.frombuffer(bytearray(data), dtype=torch.float32)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
class TestForks:
    def test_children_and_parent_draw_differently_and_reproducibly(self):
        def run():
            with ft.fuzzy("sr", seed=0):
                work()
                first, second = in_child(work), in_child(work)
                return first, second, work()

        a, b = run(), run()
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
        assert not torch.equal(a[0], a[1])
        assert not torch.equal(a[0], a[2])

    def test_the_parent_does_not_notice_its_forks(self):
        with ft.fuzzy("sr", seed=0):
            in_child(work)
            y = work()
        with ft.fuzzy("sr", seed=0):
            assert torch.equal(work(), y)

    def test_a_mode_made_in_a_child_depends_on_its_seed_alone(self):
        def seeded():
            with ft.fuzzy("sr", seed=9):
                return work()

        assert torch.equal(in_child(seeded), seeded())

    def test_two_children_without_a_seed_differ(self):
        def unseeded():
            with ft.fuzzy("sr"):
                return work()

        assert not torch.equal(in_child(unseeded), in_child(unseeded))

    def test_a_mode_continues_in_a_child_that_a_child_forked(self):
        with ft.fuzzy("sr", seed=0):
            child = in_child(work)
            grandchild = in_child(lambda: in_child(work))
            y = work()
        assert not torch.equal(child, grandchild)
        assert not torch.equal(y, grandchild)

    def test_a_child_computes_on_one_thread_and_does_not_wait_for_those_of_its_parent(self):
        x = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))

        def compute():
            with ft.fuzzy("sr", seed=0):
                return (x @ x).sigmoid().softmax(0).view(-1)

        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            expected = compute()
            assert torch.equal(in_child(compute), expected)
            assert in_child(lambda: torch.tensor([float(torch.get_num_threads())])).tolist() == [1]
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(threads)

    def test_a_child_forked_while_another_thread_computes_computes_the_same(self):
        x = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
        done = threading.Event()
        inside = threading.Event()

        def occupy():
            with ft.fuzzy("sr", seed=1):
                while not done.is_set():
                    torch.mm(x, x)
                    inside.set()

        def compute():
            with ft.fuzzy("sr", seed=0):
                y = torch.mm(x, x)
            guarded = threading.Thread.start is not STOCK_START
            return torch.cat([y.view(-1), torch.tensor([float(guarded)])])

        expected = compute()[:-1]
        other = threading.Thread(target=occupy)
        other.start()
        assert inside.wait(60)
        children = [in_child(compute) for _ in range(3)]
        done.set()
        other.join()
        for y in children:
            assert torch.equal(y[:-1], expected)
            assert y[-1] == 0, "the mode of a thread that stayed behind still guards the child"

    def test_the_first_call_numbers_of_a_family_of_processes_differ(self):
        children = [first_call_of_child(0, f) for f in range(1, 200)]
        assert children == [f * FORK_STRIDE for f in range(1, 200)]
        grandchildren = [first_call_of_child(c, f) for c in children for f in range(1, 20)]
        assert len({0, *children, *grandchildren}) == 1 + 199 + 199 * 19
        assert max(grandchildren) < 2**64

    @pytest.mark.parametrize("workers", [1, 2])
    def test_loader_workers_draw_their_own_numbers_and_the_same_ones_again(self, workers):
        def load():
            with ft.fuzzy("sr", seed=0):
                loader = DataLoader(
                    Perturbed(), batch_size=2, num_workers=workers, multiprocessing_context="fork"
                )
                return torch.cat([batch.clone() for batch in loader])

        a, b = load(), load()
        assert torch.equal(a, b)
        assert len({tuple(y.tolist()) for y in a}) == 8


@pytest.mark.parametrize(
    "script",
    [
        # Compiled before the mode is entered, and run before, inside and after.
        """
        compiled = torch.compile(work, backend="aot_eager")
        before = compiled(x)
        with ft.fuzzy("sr", seed=0):
            inside = compiled(x)
            again = compiled(x)
        """,
        # The compiler is imported inside.
        """
        before = work(x)
        with ft.fuzzy("sr", seed=0):
            compiled = torch.compile(work, backend="aot_eager")
            inside = compiled(x)
            again = compiled(x)
        """,
    ],
    ids=["compiled outside", "compiled inside"],
)
def test_compiled_callables_run_eagerly_under_a_mode_and_compiled_afterwards(script):
    program = f"""
    import warnings
    import torch
    import fuzzytorch as ft

    def work(x):
        return torch.exp(x * 0.1) + x

    x = torch.linspace(0, 1, 500)
    with ft.fuzzy("sr", seed=0):
        eager = work(x)
    warnings.simplefilter("always")
    caught = []
    warnings.showwarning = lambda *shown: caught.append(shown)
    {textwrap.indent(textwrap.dedent(script), "    ").strip()}
    assert torch.equal(inside, eager)
    assert not torch.equal(again, eager)
    said = [(str(w), file) for w, _, file, *_ in caught if "torch.compile" in str(w)]
    assert len(said) == 1 and "runs eagerly" in said[0][0] and said[0][1] == "<string>", said
    assert torch.equal(before, work(x)) and torch.equal(compiled(x), work(x))
    assert len(said) == 1
    from torch._dynamo.eval_frame import _callback_from_stance, _stance
    assert _callback_from_stance.__module__ == "torch._dynamo.eval_frame"
    assert _stance.stance == "default"
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_importing_the_package_imports_no_compiler_and_no_plotting():
    program = """
    import sys
    import fuzzytorch, torch
    with fuzzytorch.fuzzy("sr", seed=0):
        torch.ones(3) + 1
    heavy = {"torch._dynamo", "scipy", "triton", "matplotlib", "rich", "typer"}
    assert not heavy & set(sys.modules), heavy & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=300)
