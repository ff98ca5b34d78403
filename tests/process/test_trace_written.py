"""`gpuprof trace` notes which paths a program changes; `gpuprof try` asks before it runs one that writes elsewhere."""

from __future__ import annotations

import ast
import json
import os
import sys
import time
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.run_schema import errors_in
from helpers.started import finished
from helpers.trainings import trace, variables

from gpuprof.record.files.written import FILE, MOST_PATHS
from gpuprof.record.launcher.target_environment import INJECT
from gpuprof.trial.written import changes_of

need("torch")

WRITES = """
import json, pathlib, shutil, sqlite3, subprocess
elsewhere = pathlib.Path(sys.argv[1])
pathlib.Path("log.txt").write_text("new")
pathlib.Path("log.txt").read_text()
pathlib.Path("gone.txt").unlink()
pathlib.Path("before.txt").rename("after.txt")
(elsewhere / "results.json").write_text("{}")
shutil.rmtree("old")
sqlite3.connect("facts.db").close()
torch.save(torch.ones(1), "model.pt")
subprocess.run(["sh", "-c", "echo 1 > by_a_shell.txt"], check=True)
for n in range(500):
    open(f"many{n}.txt", "w").close()
train(40)
"""


@pytest.mark.slow
def test_what_a_program_changes_is_noted_and_bounded(tmp_path: Path):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here / "old", elsewhere):
        folder.mkdir(parents=True)
    for name in ("gone.txt", "before.txt", "old/weights.bin"):
        (here / name).write_text("")
    run = trace(here, WRITES, "--baseline", "2", arguments=(str(elsewhere),), env={"TMPDIR": str(here)})
    assert run.code == 0, run.stderr
    assert errors_in(run.folder) == []
    lines = [json.loads(line) for line in (run.folder / FILE).read_text().splitlines()]
    by_python = [(line["verb"], line["path"]) for line in lines if line["pid"] is not None]
    assert len(by_python) == MOST_PATHS
    expected = [
        ("writes", here / "log.txt"), ("deletes", here / "gone.txt"), ("renames", here / "before.txt"),
        ("renames", here / "after.txt"), ("writes", elsewhere / "results.json"), ("deletes", here / "old/weights.bin"),
        ("deletes", here / "old"), ("writes", here / "facts.db"),
    ]  # fmt: skip
    assert by_python[: len(expected)] == [(verb, str(path)) for verb, path in expected]
    found = changes_of(run.folder)
    assert found.elsewhere == (str(elsewhere / "results.json"),)
    assert str(here / "by_a_shell.txt") in found.native
    assert str(here / "model.pt") not in found.native, "a trial makes torch.save do nothing"
    assert found.escape and found.escape.startswith(f"{found.native[0]} and ")

    # Such a program is not tried before the user has agreed, and --list says why.
    words = [sys.executable, "-m", "gpuprof", "try"]
    manifest = run.manifest | {"command": ["python", "train.py"], "python": None}
    (here / "gpuprof-runs").mkdir(exist_ok=True)
    run.folder.rename(here / "gpuprof-runs" / "first")
    (here / "gpuprof-runs" / "first" / "manifest.json").write_text(json.dumps(manifest))
    done = finished(
        [*words, "--fix", "optimizer", "python", "train.py"], cwd=here, env=variables(), text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpuprof: when the program was recorded, ") and "--yes tries" in done.stderr
    listed = finished([*words, "--list", "python", "train.py"], cwd=here, env=variables(), text=True, timeout=60)
    said = " ".join(listed.stdout.split())  # lines are as wide as the terminal
    assert f"the program writes elsewhere (needs --yes): {elsewhere / 'results.json'} changed" in said


def test_where_output_is_redirected_to_is_not_what_the_program_writes(tmp_path: Path):
    script = tmp_path / "train.sh"
    inner = tmp_path / "look.py"
    inner.write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from gpuprof.record.files.session_files import files_of_session\n"
        "from gpuprof.record.files.written import changed_since\n"
        "from gpuprof.trial import folder_state\n"
        "began = time.time_ns() - 10**8\n"
        "outputs = files_of_session()\n"
        "before = folder_state.state_of(Path('.'), None, outputs)\n"
        "print('out', flush=True); print('error', file=sys.stderr, flush=True); time.sleep(0.2)\n"
        "Path('native.txt').write_text('x')\n"
        "after = folder_state.state_of(Path('.'), None, outputs)\n"
        "found = changed_since('.', began, set(), {'.pytest_cache'}, outputs), folder_state.changes(before, after)\n"
        "Path(sys.argv[1]).write_text(repr(found))\n"
    )
    script.write_text(f"{sys.executable} look.py {tmp_path / 'found'} 2> errors.txt | tee log.txt\n")
    here = tmp_path / "here"
    here.mkdir()
    inner.rename(here / "look.py")
    os.utime(here / "look.py", (0, 0))
    time.sleep(0.2)
    done = finished(["sh", str(script)], cwd=here, env=variables(), text=True, timeout=60)
    assert done.returncode == 0 and (here / "log.txt").read_text() == "out\n", done.stderr
    noticed, changed = ast.literal_eval((tmp_path / "found").read_text())
    assert noticed == ["./native.txt"] and changed == ["made ./native.txt"]


def test_a_process_whose_folder_is_gone_is_recorded_all_the_same(tmp_path: Path):
    run, gone = tmp_path / "run", tmp_path / "gone"
    run.mkdir()
    gone.mkdir()
    code = (
        "import os, subprocess, sys\n"
        f"os.rmdir({str(gone)!r})\n"
        "look = 'import sys; print(any(type(one).__name__ == \"ImportWatch\" for one in sys.meta_path))'\n"
        "subprocess.run([sys.executable, '-c', look], check=True)\n"
    )
    environment = variables(GPUPROF_RUN=str(run)) | {"PYTHONPATH": str(INJECT)}
    done = finished([sys.executable, "-c", code], cwd=gone, env=environment, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert not (run / "gpuprof.log").exists()
