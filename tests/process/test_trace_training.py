"""`gpuprof trace` around real trainings on the CPU: what it follows, what it records, and that it changes nothing."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.started import finished
from helpers.trainings import MODEL, WHOLE, Run, assert_whole, bare, trace, variables, write_script
from helpers.warm_torch import warm_python

need("torch")


def test_a_plain_loop_as_a_module(tmp_path: Path):
    """The whole command as a user runs it: torch is imported in the recorded process, and the recording is
    diagnosed."""
    write_script(tmp_path, "print(train(45), sys.argv[1:])")
    done = finished(
        [
            sys.executable, "-m", "gpuprof", "trace", "--settle=5", "--no-sampling", "--out", "run", "-m", "train",
            "--steps", "3",
        ],
        cwd=tmp_path, env=variables(), text=True, timeout=240,
    )  # fmt: skip
    run = Run(done, tmp_path / "run")
    without = bare(tmp_path, arguments=("--steps", "3"))
    assert run.stdout == without.stdout, "the training computes the same to the last bit"
    assert run.stdout.endswith(" ['--steps', '3']\n")
    assert_whole(run)
    rank = run.rank()
    assert rank["step_source"] == "optimizer"
    assert rank["model"]["class"] == "Model"
    assert rank["model"]["parameters"] == rank["model"]["trainable"] == 50 * 16 + 3 * (16 * 16 + 16) + 16 * 50 + 50
    assert rank["optimizer"]["class"] == "AdamW"
    assert [row["stage"] for row in rank["stages"]] == list(WHOLE)
    assert [row["steps"] for row in rank["stages"]][:5] == list(WHOLE.values())[:5]
    window = rank["windows"][0]
    assert (window["first_step"], window["steps"], window["shapes"]) == (28, 3, True)
    ranges = run.ranges()
    modules = ("nn.Module: Embedding", "nn.Module: Linear_0", "nn.Module: Linear")
    for name in ("forward", "backward", "optimizer", *modules):
        assert ranges.count(name) == 3, name
    last = run.steps()[29]
    assert (last["samples"], last["tokens"], last["real_tokens"], last["micro_steps"]) == (None, 32, 24, 1)
    assert last["profiled"] and not any(step["profiled"] for step in run.steps()[:25])
    assert run.manifest["status"] == "finished"
    assert run.manifest["exit"] == {"code": 0, "signal": None}


@pytest.mark.parametrize("parts", [1, 20])
def test_optimizers_that_step_inside_of_the_backward_pass(tmp_path: Path, parts: int):
    """One for each parameter, as in layer-wise methods that keep no gradients. A profiler that began inside of the pass
    would crash the process at its end."""
    code = f"""
    class Wide(Model):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(16, 16) for _ in range({parts})])
    model = Wide()
    optimizers = {{p: torch.optim.SGD([p], lr=1e-3) for p in model.parameters()}}
    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for batch in batches(45):
        loss_of(model, batch).backward()
    print(sum(p.detach().double().sum().item() for p in model.parameters()))
    """
    run = trace(tmp_path, code)
    assert run.code == 0, run.stderr
    assert run.stdout == bare(tmp_path).stdout
    assert_whole(run)
    assert run.rank()["steps_seen"] == 45
    assert run.ranges().count("backward") == 3


def test_short_steps_settle_for_longer(tmp_path: Path):
    run = trace(tmp_path, "train(50)", settle=())
    assert run.stages()["settle"] == 10
    assert run.stages()["trace"] == 3


def test_accumulation_a_data_loader_and_its_workers(tmp_path: Path):
    code = """
    from torch.utils.data import DataLoader
    def main():
        model = Model()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, batch in enumerate(DataLoader(list(batches(45 * 3)), batch_size=None, num_workers=2)):
            loss_of(model, batch).backward()
            if i % 3 == 2:
                opt.step()
                opt.zero_grad()
    if __name__ == "__main__":
        main()
    """
    run = trace(tmp_path, code)
    assert_whole(run)
    assert all(step["micro_steps"] == 3 and step["tokens"] == 96 for step in run.steps()[6:30])
    assert run.ranges().count("data") == 9
    assert run.rank()["loader"]["num_workers"] == 2


def test_several_optimizers_are_one_step(tmp_path: Path):
    code = """
    model = Model()
    a = torch.optim.AdamW(model.layers.parameters())
    b = torch.optim.SGD(model.head.parameters(), lr=0.1)
    for batch in batches(45):
        loss_of(model, batch).backward()
        a.step(); b.step(); a.zero_grad(); b.zero_grad()
    """
    run = trace(tmp_path, code)
    assert run.code == 0
    assert run.rank()["steps_seen"] == 46, "the first optimizer passed for a step until the second came"
    assert all(step["micro_steps"] == 1 for step in run.steps()[3:40])


def test_an_optimizer_that_calls_its_parent(tmp_path: Path):
    code = """
    class Twice(torch.optim.AdamW):
        def step(self, closure=None):
            return super().step(closure)
    train(45, optimizer=Twice)
    """
    run = trace(tmp_path, code)
    assert_whole(run)
    assert run.rank()["steps_seen"] in (45, 46)


def test_a_grad_scaler(tmp_path: Path):
    code = """
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)
    model = Model()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(45):
        scaler.scale(loss_of(model, batch)).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
    """
    assert_whole(trace(tmp_path, code))


def test_windows_with_stacks_and_memory(tmp_path: Path):
    run = trace(tmp_path, "train(60)", "--stacks", "--memory", "1")
    assert run.code == 0
    assert [(w["window"], w["steps"]) for w in run.rank()["windows"]] == [("trace", 3), ("stacks", 2), ("memory", 1)]
    assert any(e.get("cat") == "python_function" for e in run.trace(window="stacks")["traceEvents"])
    assert any(e["name"] == "[memory]" for e in run.trace(window="memory")["traceEvents"])
    assert not any(e.get("cat") == "python_function" for e in run.trace()["traceEvents"])


def test_a_short_script_yields_its_baseline(tmp_path: Path):
    run = trace(tmp_path, "train(12)")
    assert run.code == 0
    assert run.stages() == {"settle": 5, "baseline_free": 7}
    assert not list(run.folder.glob("trace*"))
    assert "12 steps" in run.stderr


def test_a_script_that_ends_inside_the_window_yields_its_whole_steps(tmp_path: Path):
    run = trace(tmp_path, "train(29)")
    assert run.code == 0
    assert run.rank()["windows"][0]["steps"] == 2
    assert "ProfilerStep#28" in run.ranges()


@pytest.mark.parametrize(
    ("at", "whole", "says"), [(30, 2, "2 steps recorded"), (28, 0, "the recording ended within its first step")]
)
def test_a_training_that_raises_inside_the_window(tmp_path: Path, at: int, whole: int, says: str):
    code = f"""
    class Bad(torch.optim.SGD):
        count = 0
        def step(self, closure=None):
            Bad.count += 1
            if Bad.count == {at}:
                raise RuntimeError("out of luck")
            return super().step(closure)
    train(40, optimizer=Bad)
    """
    run = trace(tmp_path, code)
    assert run.code == 1
    assert "RuntimeError: out of luck" in run.stderr
    assert says in run.stderr and "continues unprofiled" not in run.stderr
    assert run.rank()["windows"][0]["steps"] == whole
    assert run.manifest["status"] == "failed"


def test_sys_exit_inside_a_step(tmp_path: Path):
    run = trace(tmp_path, "train(8); model = Model(); sys.exit(7)")
    assert run.code == 7
    assert run.rank()["steps_seen"] == 8


def test_a_kill_inside_the_window_leaves_the_baseline(tmp_path: Path):
    code = """
    import signal
    class Killed(torch.optim.SGD):
        count = 0
        def step(self, closure=None):
            Killed.count += 1
            if Killed.count == 29:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().step(closure)
    train(40, optimizer=Killed)
    """
    run = trace(tmp_path, code)
    assert run.code == -9
    assert run.stages()["baseline_sync"] == 10
    assert run.manifest["exit"] == {"code": None, "signal": "SIGKILL"}


def test_stop_ends_the_training_once_recorded(tmp_path: Path):
    code = """
    import atexit
    # The steps of 5 s are not counted after a recording: all of them would be waited for.
    sys.modules["_gpuprof.record.steps.free_run_length"].AFTERMATH_NS //= 50
    atexit.register(print, "cleaned up")
    try:
        train(10_000_000)
    except Exception:
        print("must not be caught here")
    """
    run = trace(tmp_path, code, "--stop")
    assert run.code == 0, run.stderr
    assert run.stdout == "cleaned up\n"
    assert run.rank()["windows"][0]["steps"] == 3


def test_stop_waits_for_the_baseline_where_a_tool_records(tmp_path: Path):
    run = trace(tmp_path, "train(10_000_000)", "--stop", env={"NVTX_INJECTION64_PATH": "/nonexistent"})
    assert run.code == 0
    assert run.stages() == {"settle": 5, "baseline_free": 10, "baseline_sync": 10}


@pytest.mark.slow
def test_ranks_stop_at_the_same_step(tmp_path: Path):
    code = """
    import torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Model())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        loss_of(model, next(batches(1))).backward()
        opt.step()
        opt.zero_grad()
    """
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    run = trace(tmp_path, code, "--stop", command=torchrun)
    assert run.code == 0, run.stderr
    assert run.rank(0)["steps_seen"] == run.rank(1)["steps_seen"] == 30


def test_watched_steps_cost_an_epoch_no_window(tmp_path: Path):
    """A slow first step has settled the run; the epoch has just enough steps, but for three that would be watched."""
    code = """
    import time
    from torch.utils.data import DataLoader
    model = Model()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, batch in enumerate(DataLoader(list(batches(31)), batch_size=None)):
        loss_of(model, batch).backward()
        opt.step()
        opt.zero_grad()
        time.sleep(0 if i else 2.5)
    """
    run = trace(tmp_path, code, settle=())
    assert run.code == 0, run.stderr
    assert (run.stages()["settle"], run.stages()["trace"]) == (5, 3)


def test_two_trainings_in_one_process(tmp_path: Path):
    run = trace(tmp_path, "train(3); train(50)")
    assert run.code == 0
    assert run.stages()["trace"] == 3
    assert run.rank()["steps_seen"] >= 52


def test_a_script_that_never_steps(tmp_path: Path):
    run = trace(tmp_path, "print('fine')")
    assert (run.code, run.stdout) == (0, "fine\n")
    assert not (run.folder / "rank0.json").exists()
    assert "optimizer step" in run.stderr


def test_a_script_that_forks(tmp_path: Path):
    code = """
    train(20)
    child = os.fork()
    if child == 0:
        train(30)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    train(20)
    """
    run = trace(tmp_path, code)
    assert run.code == 0, run.stderr
    assert run.rank()["steps_seen"] == 40
    assert run.stages()["trace"] == 3
    assert "recorded by another process" in run.log()


@pytest.mark.slow
def test_training_in_a_spawned_process(tmp_path: Path):
    code = """
    import torch.multiprocessing as mp
    def work(i):
        train(45)
    if __name__ == "__main__":
        mp.spawn(work, nprocs=1)
    """
    assert_whole(trace(tmp_path, code))


@pytest.mark.slow
def test_the_programs_own_profiler_is_left_alone(tmp_path: Path):
    code = """
    from torch.profiler import profile
    with profile() as before:
        train(40)
    assert len(before.key_averages())
    train(30)
    """
    run = trace(tmp_path, code)
    assert run.code == 0, run.stderr
    assert any("own profiler" in note for note in run.rank()["notes"])
    assert all(step["profiled"] for step in run.steps()[:20])
    assert run.stages()["trace"] == 3, "recorded once the program's own had ended"


def test_the_programs_own_profiler_takes_over_inside_the_window(tmp_path: Path):
    code = """
    from torch.profiler import profile
    model = Model()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    def step():
        loss_of(model, next(batches(1))).backward()
        opt.step()
        opt.zero_grad()
    for _ in range(28):
        step()
    with profile() as theirs:
        step()
    print(any(e.key == "aten::linear" for e in theirs.key_averages()))
    for _ in range(10):
        step()
    """
    run = trace(tmp_path, code)
    assert (run.code, run.stdout) == (0, "True\n"), run.stderr
    assert any("started its own profiler" in note for note in run.rank()["notes"])


def test_an_nvtx_tool_gets_the_recording(tmp_path: Path):
    run = trace(tmp_path, "train(40)", env={"NVTX_INJECTION64_PATH": "/nonexistent"})
    assert run.code == 0
    assert not run.rank()["windows"]
    assert any("NVTX tool" in note for note in run.rank()["notes"])


def test_an_error_of_our_own_never_reaches_the_training(tmp_path: Path):
    code = """
    os.mkdir(os.path.join(os.environ["GPUPROF_RUN"], "steps.jsonl"))
    print(train(45) != 0)
    """
    run = trace(tmp_path, code)
    assert (run.code, run.stdout) == (0, "True\n")
    assert "recording failed" in run.stderr
    assert "the training continues" in run.stderr


@pytest.mark.slow
def test_a_compiled_model_is_not_compiled_again(tmp_path: Path):
    code = """
    from torch._dynamo.utils import counters
    model = torch.compile(Model(), backend="eager")
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for batch in batches(45):
        loss_of(model, batch).backward()
        opt.step()
        opt.zero_grad()
        seen.append(counters["stats"]["unique_graphs"])
    print(seen[0] == seen[-1])
    """
    run = trace(tmp_path, code)
    assert run.stdout == "True\n", run.stderr
    assert run.rank()["model"]["compiled"] is True
    assert "nn.Module: Linear_0" not in run.ranges()
    assert run.ranges().count("forward") == 0 or run.ranges().count("forward") == 3


def test_two_ranks_under_torchrun(tmp_path: Path):
    code = """
    import torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Model())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(45):
        loss_of(model, batch).backward()
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()
    """
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python")
    run = trace(tmp_path, code, command=(*torchrun, warm_python()))
    for rank in (0, 1):
        assert_whole(run, rank)
        assert run.rank(rank)["world_size"] == 2
        assert run.rank(rank)["model"]["wrapper"] == "DistributedDataParallel"
    assert run.stderr.count("gpuprof: step 6") == 1, "one rank speaks for all"


@pytest.mark.slow
def test_only_the_ranks_asked_for(tmp_path: Path):
    run = trace(tmp_path, "train(45)", "--ranks", "1", env={"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"})
    assert (run.folder / "rank1.json").exists()
    assert run.stages(1)["trace"] == 3


def test_a_recorder_in_ones_own_loop(tmp_path: Path):
    code = """
    import gpuprof
    with gpuprof.Recorder("run", steps=2, modules=0) as recorder:
        model = Model()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches(45):
            loss_of(model, batch).backward()
            opt.step()
            recorder.step()
    """
    script = tmp_path / "own.py"
    script.write_text(textwrap.dedent(MODEL) + textwrap.dedent(code))
    done = finished([warm_python(), script], cwd=tmp_path, env=variables(), text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    run = Run(done, tmp_path / "run")
    assert run.rank()["step_source"] == "recorder"
    assert run.rank()["model"]["class"] == "Model"
    assert run.stages()["trace"] == 2
    assert run.manifest["status"] == "finished"
    assert "gpuprof diagnose" in done.stderr


def test_a_recorder_under_trace_only_counts(tmp_path: Path):
    code = """
    import gpuprof
    with gpuprof.Recorder("other") as recorder:
        model = Model()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches(45):
            loss_of(model, batch).backward()
            opt.step()
            recorder.step()
    """
    run = trace(tmp_path, code)
    assert_whole(run)
    assert run.rank()["step_source"] == "recorder"
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("lengths", "options", "steps"), [("8", (), 1), ("4 + 8 * (step % 2)", (), 2), ("8", ("--steps", "3"), 3)]
)
def test_fewer_steps_of_many_ops_are_recorded_that_stand_for_the_baseline(
    tmp_path: Path, lengths: str, options: tuple[str, ...], steps: int
):
    """As if the profiler needed half a second for each op; batches of one length, and of two alternating lengths."""
    code = f"""
    sys.modules["_gpuprof.record.steps.enough_steps"].NODE_NS = 500_000_000
    model = Model()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(60):
        loss_of(model, {{"input_ids": torch.randint(0, 50, (4, {lengths}))}}).backward()
        opt.step()
        opt.zero_grad()
    """
    run = trace(tmp_path, code, *options)
    (window,) = run.rank()["windows"]
    assert window["steps"] == steps
    assert run.ranges().count("forward") == steps
    assert ("steps are recorded: each has many ops" in run.log()) == (steps < 3)
    assert run.stages()["trace"] == steps, "what follows begins earlier"
