"""The house keeps its order: floors, words that must not appear, and a start that is quick."""

from __future__ import annotations

import ast
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from helpers.paths import ROOT

PACKAGE = ROOT / "gpuprof"

FLOORS = (
    {"cli"},
    {"report", "interop"},
    {"diagnosis"},
    {"projection"},
    {"replay"},
    {"costs"},
    {"timeline"},
    {"tracefile"},
    {"record"},
    {"nsight"},
    {"runfile"},
    {"errors"},
)
"""From the roof down: code imports only from its own room and from floors below it, so no cycles either."""

ALONE = {"record": {"runfile"}, "nsight": {"errors"}, "runfile": set(), "errors": set()}
"""Rooms held to less than the floors below them, because they run inside the process that is profiled."""

STANDARD_LIBRARY_ONLY = {"nsight", "runfile", "errors"}
API = {"load", "diagnose", "compare", "project", "Recorder"}


def python_files() -> list[Path]:
    """Every module of the package but the public face, which may reach anywhere if it does so lazily."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def room_of(path: Path) -> str:
    """`gpuprof/timeline/gaps.py` is in the room `timeline`, `gpuprof/runfile.py` in `runfile`."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """Dotted names of what a file imports, wherever in it; `from a import b` gives `a.b`."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def allowed_rooms(room: str) -> set[str]:
    """Rooms that code in `room` may import from."""
    if room in ALONE:
        return {room} | ALONE[room]
    height = next(i for i, floor in enumerate(FLOORS) if room in floor)
    return {room}.union(*FLOORS[height + 1 :])


def test_each_floor_imports_only_from_floors_below():
    known = set().union(*FLOORS)
    wrong = []
    for path in python_files():
        room = room_of(path)
        if room == "__main__":
            continue  # the same as the command
        assert room in known, f"gpuprof/{room} is on no floor: say in FLOORS where it stands"
        for name in imports_of(path):
            head, _, rest = name.partition(".")
            target = rest.split(".")[0]
            if head != "gpuprof" or target.startswith("__"):
                continue
            # Only commands call the public API; inside the house one imports from the room itself.
            if target not in allowed_rooms(room) and not (room == "cli" and target in {*API, ""}):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_some_rooms_use_only_the_standard_library():
    for path in python_files():
        if room_of(path) in STANDARD_LIBRARY_ONLY:
            outside = {n.split(".")[0] for n in imports_of(path)} - sys.stdlib_module_names - {"gpuprof"}
            assert not outside, f"{path.relative_to(ROOT)} imports {outside}"


def test_no_module_bears_a_name_of_the_api():
    """`gpuprof.load` is a function; a module of that name would take its place once imported."""
    taken = {path.name.removesuffix(".py") for path in PACKAGE.iterdir()} & API
    assert not taken


def test_the_package_imports_nothing_of_its_own_until_asked():
    loaded = in_new_python("import sys, gpuprof; print(*(m for m in sys.modules if m.startswith('gpuprof.')))")
    assert loaded == ""


def test_the_command_line_imports_nothing_heavy():
    heavy = "{'numba', 'pandas', 'torch'}"
    assert in_new_python(f"import sys, gpuprof.cli; print(*({heavy} & set(sys.modules)))") == ""


def in_new_python(code: str) -> str:
    """What a fresh interpreter prints when it runs `code`."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_help_is_quick():
    """`gpuprof --help` takes less than 0.2 s of processor time more than Python itself; a busy machine gets three
    tries."""
    bare, command = [sys.executable, "-c", "pass"], [sys.executable, "-m", "gpuprof", "--help"]
    processor_s(command)  # bytecode is compiled once, and that is not what a user waits for
    costs_s = (statistics.median(processor_s(command) - processor_s(bare) for _ in range(5)) for _ in range(3))
    assert any(cost < 0.2 for cost in costs_s)


def processor_s(command: list[str]) -> float:
    """Seconds of processor time, user and system, that a command takes."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def project_files() -> list[Path]:
    """What is, or would be, under version control; outside of a clone, every file there is."""
    if shutil.which("git") and (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if not {".venv", ".venv-hta"} & set(path.parts)]
    return [path for path in paths if path.is_file()]


def test_no_file_names_the_machine_it_was_written_on():
    places = re.compile(rb"/" + rb"(work|farm)/|(?<!\w)\." + rb"library\b")
    named = [str(path.relative_to(ROOT)) for path in project_files() if places.search(path.read_bytes())]
    assert not named


def test_python_files_have_no_tabs_and_no_carriage_returns():
    python = [path for path in project_files() if path.suffix == ".py"]
    assert not [str(path) for path in python if re.search(rb"[\t\r]", path.read_bytes())]
