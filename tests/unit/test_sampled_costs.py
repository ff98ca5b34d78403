"""Which function or line a sampled stack counts for, with stacks made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from helpers.present import present

from gpuprof.diagnosis.sampled.host_calls import StackColumns, costs
from gpuprof.diagnosis.sampled.sampled_functions import explain_line, explain_worker_line
from gpuprof.tracefile.run_folder.samples import read_samples

MODEL = ("library", "torch/nn/modules/module.py", "Module._call_impl")
DECORATED = ("own", "train.py", "timed.<locals>.wrapper")
"""What a decorator of the user's returns, for whatever it decorates."""


def main(line: int) -> tuple[str, str, str, int]:
    return ("own", "train.py", "main", line)


def own(name: str, line: int) -> tuple[str, str, str, int]:
    return ("own", "train.py", name, line)


Stack = tuple[int, list[tuple[str, str, str, int]]]
"""Number of samples, and the stack that they have, from the outermost call."""


def write(tmp_path: Path, stacks: Sequence[Stack], workers: Sequence[Stack] = ()) -> None:
    """The samples of a training thread, and of one worker of its loader."""
    functions: list[tuple[str, str, str]] = []
    nodes: list[tuple[int, int, int]] = []

    def ends(of: Sequence[Stack]) -> Iterator[int]:
        for count, stack in of:
            at = -1
            for kind, file, name, line in stack:
                if (kind, file, name) not in functions:
                    functions.append((kind, file, name))
                node = (at, functions.index((kind, file, name)), line)
                if node not in nodes:
                    nodes.append(node)
                at = nodes.index(node)
            yield from [at] * count

    samples = [[1000 * i, at, -1] for i, at in enumerate(ends(stacks))]
    of_workers = [[1000 * i, 0, at] for i, at in enumerate(ends(workers))]
    ended = 1000 * len(samples)
    document = {
        "schema": "gpuprof.samples/1", "python": "3.11.7", "period_ns": 1000, "begun_ns": 0, "ended_ns": ended,
        "unread": 0, "first_step": 1, "steps_ns": [0, ended // 2, ended], "marks": [], "nodes": nodes,
        "functions": [[*function, 1] for function in functions], "samples": samples, "workers": 1,
        "worker_samples": of_workers,
    }  # fmt: skip
    (tmp_path / "samples.rank0.json").write_text(json.dumps(document))


def charged(tmp_path: Path, *stacks: Stack) -> dict[str, int]:
    """What is listed, `line function` or `function`, and its samples, of a loop that also calls the model."""
    write(tmp_path, [(100, [main(5), (*MODEL, 1)]), *stacks])
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


def test_a_line_of_the_workers_is_explained(tmp_path: Path):
    """A worker's stack begins with that of the training that it was forked from, which does not count."""
    fetch, module = ("library", "torch/utils/data/_utils/fetch.py", "fetch", 50), ("own", "train.py", "<module>", 80)
    workers = [
        (60, [module, fetch, own("decode", 20)]),
        (20, [module, fetch, own("collate", 30)]),
        (20, [module, ("library", "torch/utils/data/_utils/worker.py", "_worker_loop", 9)]),
    ]
    write(tmp_path, [(10, [module])], workers)
    decode = present(explain_worker_line(str(tmp_path), 0, "train.py", 20))
    assert (decode.function, decode.line) == ("decode", 20)
    assert decode.share.low < decode.share.expected == 0.6 < decode.share.high
    assert explain_worker_line(str(tmp_path), 0, "train.py", 80) is None, "no worker makes a batch there"
    assert explain_line(str(tmp_path), 0, None, None, "train.py", 25) is None, "a module begins before everything"
    assert present(explain_line(str(tmp_path), 0, None, None, "train.py", 80)).samples == 10
