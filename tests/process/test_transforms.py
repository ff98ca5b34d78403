"""How much of torch.func's tensors a recording may keep, and that it keeps no more; the GPU's figures are made up."""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import itertools
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from helpers.installed import need
from helpers.trainings import Run, assert_whole, trace
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.record.windows.allowance import GROWTH_BYTES, RESERVE_BYTES, Allowance, has_outgrown, to_keep

need("torch")
torch: Any = None


@pytest.fixture(scope="module", autouse=True)
def imported_torch() -> None:
    """Imports torch when the first of these tests runs: tests are collected by processes that run none of them."""
    globals()["torch"] = importlib.import_module("torch")


GIB = 1 << 30
sizes = st.integers(0, 1000)

# -- arithmetic


@given(st.integers(0, 200 * GIB))
def test_half_of_what_is_left_stays_with_the_training(headroom: int):
    kept = to_keep(headroom)
    assert 0 <= kept <= headroom // 2
    assert kept == 0 or headroom - kept >= RESERVE_BYTES


@pytest.mark.parametrize(
    ("grown", "steps", "outgrown"), [(-GIB, 1, False), (0, 1, False), (4 * GIB, 1, False), (4 * GIB + 1, 1, True),
                                     (5 * GIB, 2, False), (6 * GIB, 2, True)],
)  # fmt: skip
def test_a_window_closes_before_another_step_would_be_too_much(grown: int, steps: int, outgrown: bool):
    assert has_outgrown(grown, steps, 16 * GIB) is outgrown


def test_a_little_growth_closes_no_window():
    assert not has_outgrown(GROWTH_BYTES // 2, 1, 0)
    assert has_outgrown(GROWTH_BYTES, 1, 0)


def recorded_calls(allowance: Allowance, steps: list[list[int]]) -> list[int]:
    """How many calls of each step are recorded if they take this much."""
    counts = []
    for step in steps:
        count = 0
        for size in step:
            admitted = allowance.admit()
            allowance.measured(size, keeps=admitted)
            count += admitted
        counts.append(count)
        allowance.end_step()
    return counts


def allowed(budget: int, steps: int, *measured: int) -> Allowance:
    allowance = Allowance()
    for size in measured:
        allowance.measured(size, keeps=False)
    allowance.grant(budget, steps)
    return allowance


def test_each_step_gets_the_same_share():
    allowance = allowed(100, 3, 8)
    assert recorded_calls(allowance, [[8] * 32] * 3) == [4, 4, 4]
    assert (allowance.calls, allowance.left_out, allowance.kept) == (96, 84, 96)


def test_where_there_is_room_all_are_recorded():
    allowance = allowed(96 * 8, 3, 8)
    assert recorded_calls(allowance, [[8] * 32] * 3) == [32] * 3
    assert allowance.left_out == 0


def test_of_unknown_size_is_left_out_once_and_measured():
    assert recorded_calls(allowed(100, 2), [[5, 5], [5, 5]]) == [0, 2]


def test_a_step_of_larger_calls_takes_from_those_after_it():
    assert recorded_calls(allowed(90, 3, 10), [[60, 60], [10], [10]]) == [1, 0, 0]


def test_what_the_memory_really_grew_by_counts():
    allowance = allowed(90, 3, 10)
    allowance.admit()
    allowance.measured(10, keeps=True)
    allowance.end_step(85)
    assert recorded_calls(allowance, [[10]]) == [0]


@given(st.integers(0, 5000), st.lists(st.lists(sizes, max_size=8), min_size=1, max_size=5), st.lists(sizes, max_size=3))
def test_no_more_than_the_budget_is_kept(budget: int, steps: list[list[int]], more: list[int]):
    largest = max(itertools.chain(*steps), default=0)
    allowance = allowed(budget, len(steps), largest, *more)
    recorded_calls(allowance, steps)
    assert allowance.kept <= budget


@given(st.integers(0, 5000), st.lists(st.lists(sizes, max_size=8), min_size=1, max_size=5), st.lists(sizes, max_size=3))
def test_one_call_larger_than_all_before_is_all_that_goes_beyond(budget: int, steps: list[list[int]], few: list[int]):
    allowance = allowed(budget, len(steps), *few)
    recorded_calls(allowance, steps)
    assert allowance.kept <= budget + max(itertools.chain(*steps), default=0)


def test_what_is_left_is_that_of_the_fullest_gpu_at_its_fullest(monkeypatch: pytest.MonkeyPatch):
    from gpuprof.record.windows.memory import GpuMemory

    stats = {0: {"current": 10, "peak": 60, "allocated": 500}, 1: {"current": 5, "peak": 20, "allocated": 70}}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda d: {"allocated_bytes": {"all": stats[d]}})
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda d: (30, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda d: 65)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda d: 1.0, raising=False)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native", raising=False)
    memory = GpuMemory([0, 1])
    assert (memory.allocated(), memory.allocated_ever(), memory.headroom()) == (15, 570, 35)
    stats[0]["peak"] = 10
    assert memory.headroom() == 35, "the program set its account of the peak to zero"
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda d: 0.7)
    assert memory.headroom() == 10, "the program may take 70 of 100"
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    assert memory.headroom() == 0, "this allocator does not tell what was allocated meanwhile"


def test_without_a_budget_no_call_is_recorded_not_even_one_that_seems_to_take_nothing():
    allowance = Allowance()
    allowance.measured(0, keeps=False)
    allowance.grant(0, 3)
    assert not allowance.admit()


# -- in a process


class FakeMemory:
    """A GPU whose memory allocated so far grows by a megabyte with each query."""

    def __init__(self, room: int = 0, grows: int = 0) -> None:
        self.room, self.grows, self.ever, self.now = room, grows, 0, 0

    def allocated_ever(self) -> int:
        self.ever += 1 << 20
        return self.ever

    def allocated(self) -> int:
        self.now += self.grows
        return self.now

    def headroom(self) -> int:
        return self.room


class Watched:
    """A profiler with shapes together with the watch, and what it has recorded."""

    def __init__(self, budget: int = 0, warm: Any = None, memory: Any = None) -> None:
        self.budget, self.warm, self.memory = budget, warm, memory or FakeMemory()

    def __enter__(self) -> Watched:
        from gpuprof.record.base.ranges import Ranges
        from gpuprof.record.windows.transforms import Transforms

        ranges = Ranges()
        ranges.record(True)
        self.transforms = Transforms(self.memory, ranges)
        if self.warm is not None:
            self.warm()
            self.transforms.end_step()
        self.transforms.record(self.budget, 1)
        self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True)
        self.profiler.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self.transforms.close()
        self.profiler.__exit__(None, None, None)
        self.names = [event.name for event in self.profiler.events()]


def patched() -> list[str]:
    from torch._functorch import eager_transforms, vmap

    places = [vars(eager_transforms), vars(vmap)]
    return [name for place in places for name in place if hasattr(place[name], "_torchdynamo_disable")
            and name.endswith("crement_nesting")]  # fmt: skip


def cube(x: Any) -> Any:
    return (x * x * x).sum()


TRANSFORMS = {
    "grad": lambda x: torch.func.grad(cube)(x),
    "grad of grad": lambda x: torch.func.grad(lambda y: torch.func.grad(cube)(y).sum())(x),
    "vjp": lambda x: torch.func.vjp(cube, x)[0],
    "jvp": lambda x: torch.func.jvp(cube, (x,), (x,))[1],
    "vmap": lambda x: torch.vmap(lambda y: y.mul(y).mul(y))(x),
    "vmap of grad": lambda x: torch.vmap(torch.func.grad(cube))(x.reshape(2, -1)),
    "functionalize": lambda x: torch.func.functionalize(lambda y: y.mul(2).mul_(3))(x),
}


@pytest.mark.parametrize("what", TRANSFORMS)
@pytest.mark.parametrize("leaves_out", [False, True])
def test_a_call_is_recorded_or_left_out_as_a_whole(what: str, leaves_out: bool):
    x = torch.arange(6.0)
    call = TRANSFORMS[what]
    bare = call(x)
    with Watched(0 if leaves_out else 10 * GIB, warm=lambda: call(x)) as watched:
        found = call(x)
        x.sin()
    assert torch.equal(found, bare)
    assert (watched.transforms.allowance.calls, watched.transforms.allowance.left_out) == (1, int(leaves_out))
    assert ("aten::mul" not in watched.names) is leaves_out
    assert watched.names.count("torch.func") == int(leaves_out)
    assert "aten::sin" in watched.names, "what follows is recorded again"
    assert not patched()


@pytest.mark.slow
def test_nothing_is_kept_of_a_call_that_is_left_out():
    from torch.multiprocessing.reductions import StorageWeakRef

    for budget, stays in ((10 * GIB, True), (0, False)):
        storages = []

        def loss(x: Any, storages: list[Any] = storages) -> Any:
            inner = x * 2
            storages.append(StorageWeakRef(torch._C._functorch.get_unwrapped(inner).untyped_storage()))
            return (inner * inner).sum()

        call = torch.func.grad(loss)
        with Watched(budget, warm=lambda call=call: call(torch.ones(8))):
            call(torch.ones(8))
            gc.collect()
            assert storages[-1].expired() is not stays
        assert storages[0].expired(), "in warm-up nothing is kept"


def test_after_an_exception_ops_are_recorded_again():
    def fails(x: Any) -> Any:
        raise ValueError(x.sum())

    with Watched() as watched:
        for _ in range(2):
            with pytest.raises(ValueError):
                torch.func.grad(fails)(torch.ones(3))
            torch.ones(3).sin()
    assert watched.names.count("aten::sin") == 2
    assert "aten::sum" not in watched.names
    assert watched.names.count("torch.func") == 2


def test_other_threads_neither_count_nor_go_blind():
    def call() -> None:
        torch.func.grad(cube)(torch.ones(3))

    with Watched() as watched:
        other = threading.Thread(target=call)
        other.start()
        other.join()
        torch.ones(3).sin()
    assert watched.transforms.allowance.calls == 0
    assert "aten::sin" in watched.names


def test_an_error_in_the_watch_stays_in_it():
    class Broken(FakeMemory):
        def allocated_ever(self) -> int:
            raise RuntimeError("no figures")

    with Watched(memory=Broken()) as watched:
        assert torch.equal(torch.func.grad(cube)(torch.ones(3)), torch.full((3,), 3.0))
        assert not patched()
        torch.ones(3).sin()
    assert isinstance(watched.transforms.error, RuntimeError)
    assert "aten::sin" in watched.names


def test_a_window_that_closes_in_the_middle_of_a_call_leaves_nothing_behind():
    with Watched() as watched:

        def loss(x: Any) -> Any:
            watched.transforms.close()
            return cube(x)

        torch.func.grad(loss)(torch.ones(3))
        torch.ones(3).sin()
    assert watched.names.count("torch.func") == 1
    assert {"aten::mul", "aten::sin"} <= set(watched.names)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_does_not_meet_the_watch(backend: str):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: (torch.func.grad_and_value(cube)(x)[0], torch.vmap(torch.sin)(x)), backend=backend, fullgraph=True
    )
    x = torch.arange(3.0)
    with Watched() as watched:
        inside = compiled(x)
        assert patched()
    frames = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    after = compiled(x)
    assert all(map(torch.equal, inside, after))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == frames, "nor is it compiled anew without it"
    assert watched.transforms.error is None


@pytest.mark.slow
def test_where_a_compiled_function_breaks_off_nothing_of_ours_is_compiled():
    def breaks_off(x: Any) -> Any:
        torch._dynamo.graph_break()
        return cube(x)

    frames = []
    for watch in (contextlib.nullcontext(), contextlib.nullcontext(), Watched()):  # the very first call compiles more
        torch._dynamo.reset()
        counters = torch._dynamo.utils.counters
        counters.clear()
        compiled = torch.compile(lambda x: torch.func.grad(breaks_off)(x.sin()).cos(), backend="eager")
        with watch:
            for _ in range(3):
                compiled(torch.arange(3.0))
        frames.append(counters["frames"]["total"])
    assert frames[1] == frames[2] > 1


# -- in a training

TRAINING = """
    def chunk(weight, x):
        return torch.logsumexp(x @ weight, 1).tanh().sum()

    model = torch.nn.Linear(8, 8)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(45):
        x = model(torch.ones(4, 8))
        total = 0
        for _ in range(8):
            grad, value = torch.func.grad_and_value(chunk)(model.weight.detach(), x.detach())
            total = total + grad.sum()
        (x.sum() + total).backward()
        opt.step()
        opt.zero_grad()
    from torch._functorch import eager_transforms
    print(type(eager_transforms._grad_increment_nesting).__name__, f"{total:.9f}")
"""


def trace_with(tmp_path: Path, room: int, grows: int = 0, code: str = TRAINING) -> Run:
    """Traces a training on a GPU that is not there, with this many bytes left."""
    gpu = inspect.getsource(FakeMemory) + (
        # The recorder's modules have a name of their own in the process that it records.
        f'sys.modules["_gpuprof.record.windows.window"].gpu_memory = lambda: FakeMemory({room}, {grows})\n'
    )
    return trace(tmp_path, gpu + textwrap.dedent(code))


def names(run: Run) -> list[str]:
    return [event["name"] for event in run.trace()["traceEvents"] if event.get("cat") == "cpu_op"]


@pytest.mark.slow
def test_a_training_with_little_room_has_few_of_its_calls_recorded(tmp_path: Path):
    # Every call takes 1 MiB of which 9 are left to keep: 3 a step.
    run = trace_with(tmp_path, RESERVE_BYTES + (9 << 20))
    assert_whole(run)
    assert names(run).count("LogsumexpBackward0") == 9
    assert names(run).count("aten::addmm") == 3, "ops outside are recorded"
    assert run.ranges().count("torch.func") == 15
    assert run.rank()["notes"] == [
        "ops in 15 of 24 calls of torch.func were left out: with their shapes recorded, "
        "their tensors would have stayed in GPU memory"
    ]
    assert run.stdout.startswith("builtin_function_or_method "), "the window's end leaves torch as it was"


def test_a_training_with_room_is_recorded_whole_and_computes_the_same(tmp_path: Path):
    run = trace_with(tmp_path, 100 * GIB)
    (tmp_path / "bare").mkdir()
    bare = trace(tmp_path / "bare", TRAINING)
    assert run.stdout == bare.stdout
    for each in (run, bare):
        assert_whole(each)
        assert names(each).count("LogsumexpBackward0") == 24
        assert "torch.func" not in each.ranges()
        assert each.rank()["notes"] == []
    assert names(run) == names(bare)


def test_without_torch_func_a_full_gpu_changes_nothing(tmp_path: Path):
    run = trace_with(tmp_path, 0, code="print(train(45))")
    assert_whole(run)
    assert run.rank()["notes"] == []


def test_a_window_closes_early_where_memory_grows(tmp_path: Path):
    run = trace_with(tmp_path, 8 * GIB, grows=5 * GIB // 2, code="print(train(45))")
    assert run.code == 0
    assert [n for n in run.ranges() if n.startswith("ProfilerStep")] == ["ProfilerStep#28"]
    assert run.rank()["windows"][0]["steps"] == 1
    assert run.rank()["notes"] == ["1 instead of 3 steps are recorded: GPU memory grew by 2.7 GB in them"]
