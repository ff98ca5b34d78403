"""What a training may do while it is recorded and a recorder could break: its result must be the same as without
one."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.trainings import bare, trace

need("torch")

STEPS = """
    model = Model()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    def step():
        loss_of(model, next(batches(1))).backward()
        opt.step()
        opt.zero_grad()
"""
"""The default plan of `trace`: hooks are in the model from step 5 on, the window is open in steps 28 to 30."""

PROGRAMS = {
    "a scheduled profiler of its own": """
        from torch.profiler import profile, schedule
        seen = []
        plan = schedule(wait=20, warmup=6, active=6, repeat=1)
        with profile(schedule=plan, on_trace_ready=lambda p: seen.append(p)) as p:
            for _ in range(60):
                step()
                p.step()
        print(any(e.key == "aten::linear" for e in seen[0].key_averages()))
    """,
    "another kind of profiler": """
        for i in range(40):
            if i == 28:
                with torch.autograd.profiler.emit_itt():
                    step()
            else:
                step()
        print("done")
    """,
    "pickles and copies of the model": """
        import copy, io
        copies = []
        for _ in range(40):
            step()
            torch.save(model, io.BytesIO())
            copies.append(copy.deepcopy(model))
        for each in copies:
            loss_of(each, next(batches(1)))
            torch.save(each, io.BytesIO())
        print("saved")
    """,
    "a compiled function around the model": """
        from torch._dynamo.utils import counters
        @torch.compile(backend="eager", fullgraph=True, dynamic=False)
        def loss(ids):
            return model(ids).float().square().mean()
        for i in range(40):
            loss(torch.randint(0, 50, (4, 8 + i // 10))).backward()
            opt.step()
            opt.zero_grad()
        print(counters["stats"]["unique_graphs"])
    """,
    "children that leave by exit": """
        for i in range(40):
            step()
            if i in (10, 28, 38):
                child = os.fork()
                if child == 0:
                    print("child", i)
                    sys.exit(3)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """,
    "an exception from a signal handler": """
        import signal
        class Preempted(Exception):
            pass
        def handler(*_):
            raise Preempted
        signal.signal(signal.SIGUSR1, handler)
        import torch.profiler
        before = torch.profiler.profile.export_chrome_trace
        def slow(self, path):
            os.kill(os.getpid(), signal.SIGUSR1)
            return before(self, path)
        torch.profiler.profile.export_chrome_trace = slow
        try:
            for _ in range(40):
                step()
            print("trained" if "GPUPROF_RUN" not in os.environ else "never told")
        except Preempted:
            print("trained")
    """,
    "memory given back": """
        import gc, weakref
        for _ in range(8):
            step()
        alive = [weakref.ref(model.head.weight), weakref.ref(opt)]
        del model, opt
        gc.collect()
        print([each() is None for each in alive])
    """,
    "a mode that is strict about ops": """
        from torch.utils._python_dispatch import TorchDispatchMode
        class Strict(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                assert "profiler" not in str(func), func
                return func(*args, **(kwargs or {}))
        for _ in range(40):
            with Strict():
                loss = loss_of(model, next(batches(1)))
            loss.backward()
            opt.step()
            opt.zero_grad()
        print("strict")
    """,
    "warnings once a place": """
        import warnings
        for _ in range(40):
            warnings.warn("told once")
            step()
    """,
    "another watcher of imports": """
        print("trained")
        for _ in range(3):
            step()
    """,
    "an optimizer that holds itself": """
        opt.optimizer = opt
        for _ in range(12):
            step()
        print("done")
    """,
    "a model that takes no hooks": """
        class Plain(torch.nn.Module):
            def forward(self, x):
                return x * 2
        inner = torch.jit.script(torch.nn.Linear(4, 4))
        opt = torch.optim.SGD(inner.parameters(), lr=0.1)
        for _ in range(40):
            inner(torch.ones(2, 4)).sum().backward()
            opt.step()
        print("scripted")
    """,
}

WATCHER = """
    import importlib.util, sys as _sys
    class Finder:
        busy = False
        def find_spec(self, name, path=None, target=None):
            if name != "torch.optim.optimizer" or Finder.busy:
                return None
            Finder.busy = True
            try:
                return importlib.util.find_spec(name)
            finally:
                Finder.busy = False
    _sys.meta_path.insert(1, Finder())
"""


LONG = ("children that leave by exit", "another watcher of imports")
"""Those that start several processes with torch, or import it."""


@pytest.mark.parametrize("what", [pytest.param(w, marks=pytest.mark.slow) if w in LONG else w for w in PROGRAMS])
def test_it_comes_out_as_without_a_recorder(what: str, tmp_path: Path):
    watches = what == "another watcher of imports"
    first, command = (textwrap.dedent(WATCHER), (sys.executable,)) if watches else ("", None)
    run = trace(tmp_path, textwrap.dedent(STEPS) + textwrap.dedent(PROGRAMS[what]), first=first, command=command)
    without = bare(tmp_path, command)
    assert (run.code, run.stdout) == (without.returncode, without.stdout), run.stderr
    assert without.returncode == 0, without.stderr
    assert "recording failed" not in run.stderr
    assert run.stderr.count("told once") == without.stderr.count("told once") <= 2
