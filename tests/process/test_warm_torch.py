"""The tests' Python that has imported torch already: for scripts it is the same as the interpreter itself."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.started import finished, state, wait_for
from helpers.trainings import variables
from helpers.warm_torch import warm_python

need("torch")


def start(folder: Path, code: str, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(code)
    return finished([warm_python(), folder / "script.py", *arguments], cwd=folder, text=True, timeout=60, **options)


@pytest.mark.parametrize(
    ("code", "status"),
    [("pass", 0), ("import sys; sys.exit(3)", 3), ("raise SystemExit", 0), ("import sys; sys.exit('a text')", 1),
     ("1 / 0", 1), ("import os; os._exit(4)", 4), ("import os; os.kill(os.getpid(), 9)", -9),
     ("import os; os.kill(os.getpid(), 15)", -15)],
)  # fmt: skip
def test_the_end_is_the_scripts(code: str, status: int, tmp_path: Path):
    done = start(tmp_path, f"import atexit; atexit.register(print, 'left')\nprint('said')\n{code}")
    assert done.returncode == status
    if "os." not in code:
        assert done.stdout == "said\nleft\n"
    assert ("ZeroDivisionError" in done.stderr) is ("1 / 0" in code) and (done.stderr == "a text\n") is ("text" in code)


def test_a_script_has_its_own_arguments_input_folder_and_environment(tmp_path: Path):
    code = (
        "import os, sys; print(sys.argv[1:], sys.stdin.read(), os.getcwd(), os.environ['OURS'], __name__, sys.path[0])"
    )
    done = start(tmp_path, code, "--a", "b c", input="typed", env=variables(OURS="1"))
    assert done.stdout == f"['--a', 'b c'] typed {tmp_path} 1 __main__ {tmp_path}\n", done.stderr


def test_torch_is_there_and_no_script_meets_another(tmp_path: Path):
    code = "import sys; torch = sys.modules['torch']; print(hasattr(torch, 'mine')); torch.mine = 1"
    assert [start(tmp_path, code).stdout for _ in range(2)] == ["False\n"] * 2


def test_a_script_does_not_outlive_who_waits_for_it(tmp_path: Path):
    (tmp_path / "script.py").write_text("import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    with subprocess.Popen([warm_python(), tmp_path / "script.py"], stdout=subprocess.PIPE) as process:
        assert process.stdout
        script = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        assert wait_for(lambda: state(script) in "XZ")
