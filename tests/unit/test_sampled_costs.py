"""Which function or line a sampled stack is charged to, with stacks made by hand."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.present import present

from gpuprof.diagnosis.sampled.host_calls import StackColumns, costs
from gpuprof.tracefile.run_folder.samples import read_samples

MODEL = ("library", "torch/nn/modules/module.py", "Module._call_impl")
DECORATED = ("own", "train.py", "timed.<locals>.wrapper")
"""What a decorator of the user's returns, for whatever it decorates."""


def main(line: int) -> tuple[str, str, str, int]:
    return ("own", "train.py", "main", line)


def own(name: str, line: int) -> tuple[str, str, str, int]:
    return ("own", "train.py", name, line)


def charged(tmp_path: Path, *stacks: tuple[int, list[tuple[str, str, str, int]]]) -> dict[str, int]:
    """(samples, stack from the outermost call) → what is listed, `line function` or `function`, and its samples."""
    functions: list[tuple[str, str, str]] = []
    nodes: list[tuple[int, int, int]] = []
    samples: list[list[int]] = []
    for count, stack in ((100, [main(5), (*MODEL, 1)]), *stacks):
        at = -1
        for *function, line in stack:
            if tuple(function) not in functions:
                functions.append((function[0], function[1], function[2]))
            node = (at, functions.index((function[0], function[1], function[2])), line)
            if node not in nodes:
                nodes.append(node)
            at = nodes.index(node)
        samples += [[1000 * (len(samples) + i), at, -1] for i in range(count)]
    ended = 1000 * len(samples)
    document = {
        "schema": "gpuprof.samples/1", "python": "3.11.7", "period_ns": 1000, "begun_ns": 0, "ended_ns": ended,
        "unread": 0, "first_step": 1, "steps_ns": [0, ended // 2, ended], "marks": [], "nodes": nodes,
        "functions": [[*function, 1] for function in functions], "samples": samples,
    }  # fmt: skip
    (tmp_path / "samples.rank0.json").write_text(json.dumps(document))
    found = StackColumns(present(read_samples(tmp_path, 0)))
    listed = ((found.functions[one.function].name, one) for one in costs(found))
    return {
        f"{one.line} {name}" if one.one_line else name: len(one.samples)
        for name, one in listed
        if one.runs is None and name != "Module._call_impl"
    }


def test_a_function_that_one_line_calls_is_listed_itself(tmp_path: Path):
    stacks = (60, [main(7), own("walk", 20), own("helper", 30)]), (40, [main(7), own("walk", 21)])
    assert charged(tmp_path, *stacks) == {"walk": 100}


def test_a_function_that_several_lines_call_is_listed_by_them(tmp_path: Path):
    stacks = (60, [main(7), own("helper", 30)]), (40, [main(8), own("helper", 30)])
    assert charged(tmp_path, *stacks) == {"7 main": 60, "8 main": 40}


def test_what_a_decorator_returns_is_passed_over(tmp_path: Path):
    """It is called from everywhere; what it calls is not."""
    decorated = (*DECORATED, 9)
    stacks = (60, [main(7), decorated, own("walk", 20)]), (40, [main(8), decorated, own("load", 30)])
    assert charged(tmp_path, *stacks) == {"walk": 60, "load": 40}


def test_a_decorator_that_is_used_once_is_passed_over_too(tmp_path: Path):
    assert charged(tmp_path, (60, [main(7), (*DECORATED, 9), own("walk", 20)])) == {"walk": 60}


def test_a_function_inside_another_that_does_the_work_itself_is_listed(tmp_path: Path):
    inner = ("own", "train.py", "main.<locals>.collate", 9)
    stacks = (60, [main(7), inner]), (40, [main(7), inner, own("stack", 30)])
    assert charged(tmp_path, *stacks) == {inner[2]: 100}


def test_a_decorator_without_anything_of_yours_below_is_listed_by_its_lines(tmp_path: Path):
    stacks = (60, [main(7), (*DECORATED, 9)]), (40, [main(8), (*DECORATED, 9)])
    assert charged(tmp_path, *stacks) == {"7 main": 60, "8 main": 40}
