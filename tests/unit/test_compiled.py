"""Machine code is kept, and loaded without numba."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import ROOT

from gpuprof.tracefile.compiled import NumbaFunction, compiled

SOURCE = """
import json, sys
import numpy as np
from gpuprof.tracefile.compiled import compiled
from shared import LIMIT

RECORD = np.dtype([("count", "i8"), ("parts", "f8", (2,))], align=True)

@compiled
def weigh(values, weights, pairs, record, flag, least, factor):
    for i in range(len(values)):
        if values[i] > least and flag and i < LIMIT:
            weights[i] = values[i] * factor + pairs[i, 1]
            record.count += 1
            record.parts[1] += weights[i]
    return record.count * 10

if __name__ == "__main__":
    values, pairs = np.arange(5, dtype=np.int32), np.arange(10.0).reshape(5, 2)
    weights, record = np.zeros(5), np.zeros(1, RECORD)[0]
    found = weigh(values, weights, pairs, record, True, 1, 0.5)
    print(json.dumps([found, weights.tolist(), record["count"].item(), record["parts"].tolist(), "numba" in sys.modules]))
"""  # noqa: E501


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return write_program(tmp_path)


def write_program(folder: Path) -> Path:
    (folder / "shared.py").write_text("LIMIT = 100")
    (folder / "program.py").write_text(SOURCE)
    return folder / "program.py"


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the program after its first run, which compiles."""
    program = write_program(tmp_path_factory.mktemp("compiled"))
    assert run(program) == (EXPECTED, True)
    return program.parent


@pytest.fixture
def compiled_before(first_run: Path, tmp_path: Path) -> Path:
    """A copy of the program that has run once."""
    shutil.copytree(first_run, tmp_path, dirs_exist_ok=True)
    return tmp_path / "program.py"


def run(program: Path) -> tuple[list, bool]:
    """Runs the program; returns what it prints, and whether numba was loaded."""
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=True,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "HOME": str(program.parent / "home")},
    )  # fmt: skip
    *found, numba = json.loads(done.stdout)
    return found, numba


EXPECTED = [30, [0.0, 0.0, 6.0, 8.5, 11.0], 3, [0.0, 25.5]]


def kept(program: Path) -> list[Path]:
    return sorted((program.parent / "__pycache__").glob("*weigh-*"))


def test_a_second_run_needs_no_compiler(compiled_before):
    assert len(kept(compiled_before)) == 1
    assert run(compiled_before) == (EXPECTED, False)


def test_damaged_machine_code_is_not_run(compiled_before):
    (path,) = kept(compiled_before)
    path.write_bytes(path.read_bytes()[:-7])
    assert run(compiled_before) == (EXPECTED, True)
    assert run(compiled_before) == (EXPECTED, False)


def test_a_changed_function_or_number_is_compiled_again(compiled_before):
    (compiled_before.parent / "shared.py").write_text("LIMIT = 3  # and no more")
    assert run(compiled_before) == ([10, [0.0, 0.0, 6.0, 0.0, 0.0], 1, [0.0, 6.0]], True)
    compiled_before.write_text(SOURCE.replace("count * 10", "count * 7"))
    assert run(compiled_before) == ([7, [0.0, 0.0, 6.0, 0.0, 0.0], 1, [0.0, 6.0]], True)


@pytest.mark.slow
def test_where_there_is_no_room_next_to_the_source_the_users_cache_is_taken(program):
    (program.parent / "__pycache__").write_text("not a folder")
    assert run(program) == (EXPECTED, True)
    assert run(program) == (EXPECTED, False)
    assert len(list((program.parent / "home" / ".cache" / "gpuprof").iterdir())) == 1


@compiled
def first_above(values, least):
    for i in range(len(values)):
        if values[i] > least:
            return i
    return -1


@compiled
def emptied(values):
    for i in range(len(values)):
        values[i] = 0


@compiled
def powers(values, exponent):
    for i in range(len(values)):
        values[i] = values[i] ** exponent


@pytest.mark.parametrize("values", [np.arange(9), np.arange(9.0), np.arange(9, dtype=np.uint8), np.arange(18)[::2] / 2])
def test_each_type_and_layout_of_an_array_has_code_of_its_own(values):
    assert first_above(values, 4) == 5
    assert first_above(values, 4.5) == 5
    assert first_above(values, 40) == -1


@compiled
def chosen(flag, number):
    return number if flag else -number


@pytest.mark.parametrize("flag", [True, np.True_])
@pytest.mark.parametrize("number", [7, np.int64(7), np.int32(7)])
def test_numbers_may_be_numpys(flag, number):
    assert (chosen(flag, number), chosen(not flag, number)) == (7, -7)


def test_an_array_that_is_read_only_is_not_written():
    values = np.ones(3)
    values.flags.writeable = False
    with pytest.raises(Exception, match="readonly"):
        emptied(values)
    assert values.tolist() == [1, 1, 1]


def test_what_calls_something_outside_is_run_by_numba():
    """A power is taken by the C library, whose functions kept code would have to be linked with."""
    values = np.arange(4.0)
    powers(values, 2.5)
    assert values.tolist() == [0.0, 1.0, 2**2.5, 3**2.5]
    assert not powers.is_kept


def test_an_unknown_type_is_refused():
    with pytest.raises(TypeError, match="no kernel takes a str"):
        first_above("text", 1)


def test_a_number_is_noted_until_the_code_changes(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = [b"first"]
    one = NumbaFunction("noted", lambda: source[0], tmp_path / "code", lambda: None)
    assert one.noted == 0
    one.note(7)
    assert one.noted == NumbaFunction("noted", lambda: source[0], tmp_path / "code", lambda: None).noted == 7
    assert not one.is_kept
    source[0] = b"second"
    assert one.noted == 0
