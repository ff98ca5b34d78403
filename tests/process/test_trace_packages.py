"""`gpuprof trace` with a target that has other packages: its torch, its nvtx."""

from __future__ import annotations

import os
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.paths import ROOT
from helpers.started import finished
from helpers.trainings import ONLY_COMPRESSED, Run, assert_whole, trace, write_script

need("torch")


@pytest.mark.slow
def test_a_target_whose_torch_lives_in_another_environment(tmp_path: Path):
    """The target's environment has torch, and neither gpuprof nor what gpuprof needs."""
    torch = find_spec("torch")
    assert torch and torch.origin
    ours = Path(torch.origin).parents[1]
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    left_out = {"gpuprof", "click", "rich", "pandas", "numba", "msgspec", "isal", "sitecustomize.py"}
    for entry in ours.iterdir():
        if entry.name.split("-")[0].split(".")[0] not in left_out and not entry.name.endswith((".pth", "finder.py")):
            (theirs / entry.name).symlink_to(entry)
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    packages = next((tmp_path / "env" / "lib").glob("python*")) / "site-packages"
    (packages / "theirs.pth").write_text(str(theirs) + "\n")
    code = """
    try:
        import gpuprof
    except ImportError:
        print("no gpuprof here")
    import torch
    print(any("gpuprof" in entry for entry in sys.path), "click" in sys.modules)
    train(45)
    """
    script = write_script(tmp_path, code)
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{ONLY_COMPRESSED}"
    without_path = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = finished(
        [sys.executable, "-c", start, "trace", "--settle", "5", "--no-sampling", "--out", "run", python, script],
        cwd=tmp_path, env=without_path, text=True, timeout=240,
    )  # fmt: skip
    assert done.stdout == "no gpuprof here\nFalse False\n", done.stderr
    assert_whole(Run(done, tmp_path / "run"))


NVTX = """
import atexit

class Domain:
    def __init__(self):
        self.seen = []
        atexit.register(lambda: open("nvtx.log", "w").write("\\n".join(self.seen)))
    def get_event_attributes(self, message, color=None):
        return message
    def push_range(self, name):
        self.seen.append(f"push {name}")
    def pop_range(self):
        self.seen.append("pop")
    def start_range(self, name):
        self.seen.append(f"start {name}")
        return name
    def end_range(self, name):
        self.seen.append(f"end {name}")

class DummyDomain(Domain):
    pass

def get_domain(name):
    return DOMAIN()
"""


def test_nvtx_ranges_have_the_names_of_the_trace(tmp_path: Path):
    """No tool listens here, so a stand-in for the nvtx package notes what it receives."""
    (tmp_path / "nvtx.py").write_text(NVTX.replace("DOMAIN", "Domain"))
    env = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    run = trace(tmp_path, "train(40)", "--nvtx", env=env)
    assert_whole(run)
    seen = (tmp_path / "nvtx.log").read_text().splitlines()
    pushed = [line.removeprefix("push ") for line in seen if line.startswith("push ")]
    assert len(pushed) == seen.count("pop")
    kineto = {name for name in run.ranges() if not name.startswith(("ProfilerStep", "Optimizer."))}
    assert set(pushed) == kineto
    started = [line for line in seen if line.startswith("start ")]
    assert started[:2] == ["start step_2", "start step_3"]
    assert seen.index("end step_2") + 1 == seen.index("start step_3")


def test_an_nvtx_package_that_turned_itself_off_is_not_believed(tmp_path: Path):
    (tmp_path / "nvtx.py").write_text(NVTX.replace("DOMAIN", "DummyDomain"))
    env = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "NVTX_INJECTION64_PATH": "/nonexistent"}
    run = trace(tmp_path, "train(40)", env=env)
    assert run.code == 0
    assert not (tmp_path / "nvtx.log").read_text()
