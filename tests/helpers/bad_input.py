"""Damaged files, and what the command must say of them."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from functools import cache

import pytest
from jsonschema import Draft202012Validator

from gpuprof.diagnosis.written.diagnosis_json import schema
from helpers.command import in_process
from helpers.make_trace import TraceBuilder
from helpers.paths import ROOT

ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if not k.startswith(("GPUPROF", "COLUMNS"))},
    "PYTHONPATH": str(ROOT),
    "COLUMNS": "150",
}


@dataclass(frozen=True)
class Result:
    """What one run of the command left behind."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    """CPU time of this process where the command ran in it, else wall time."""


NAMES = {
    "script": "</script><script>alert(1)</script>",
    "closing markup": "[/b]",
    "markup": "[bold]x",
    "abi tag": "foo[abi:cxx11]",
    "emoji code": ":smile:",
    "colour": "\x1b[31mred",
    "title": "\x1b]0;owned\x07",
    "c1": "\x9b31mred",
    "bidi": "\u202eevil\u2066",
    "line end": "a\u2028b\u0085c\rd\ne",
    "zero width": "a\u200bb\ufeff",
    "marks": "Z" + "\u0338" * 2000,
    "zero byte": "a\0b",
    "formats": "%s%d{0}{name}",
    "backslash": "\\",
    "quote": '"',
    "empty": "",
    "blank": "   ",
    "mangled": "_ZN" + "9" * 5000,
    "templates": "a<" * 20_000,
    "parentheses": "(" * 20_000,
    "namespaces": "a::" * 20_000,
    "attention": "attention" * 11_000,
    "100 kB": "k" * 100_000,
    "wide": "漢" * 300,
    "surrogate pairs": "😀" * 50,
}


def driven(todo: list[tuple[str, bytes, tuple[str, ...]]]) -> dict[str, Result]:
    """Runs the command on many files without a process for each: (name, path, modes) → "name mode" → what came out."""
    results = {}
    for name, path, modes in todo:
        for mode in modes:
            begun = time.process_time()
            done = in_process("diagnose", os.fsdecode(path), "--json" if mode == "json" else "-v", COLUMNS="150")
            results[f"{name} {mode}"] = Result(done.returncode, done.stdout, done.stderr, time.process_time() - begun)
    return results


def looks_well(result: Result) -> None:
    """Checks that hold for any run: no traceback, no internal error, no terminal control sequences."""
    assert result.code in (0, 2)
    for output in (result.stdout, result.stderr):
        assert "Traceback" not in output
        assert not re.search(r"[^\n\x20-\x7e\xa1-\U0010ffff]", output)
        assert not re.search("[\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]", output)
    assert "please report it" not in result.stderr
    assert result.stderr.count("\n") <= 1


def is_refused(result: Result) -> None:
    looks_well(result)
    assert result.code == 2
    assert result.stdout == ""
    assert re.fullmatch(r"gpuprof: [^\n]{20,2000}\n", result.stderr)


def is_report(result: Result, code: int) -> None:
    looks_well(result)
    assert result.code == code
    assert re.match(r"[A-Z-]+( |:)", result.stdout)
    assert result.stderr == ""


@cache
def valid_as_diagnosis() -> Draft202012Validator:
    return Draft202012Validator(schema())


def is_json(result: Result, code: int) -> dict:
    looks_well(result)
    assert result.code == code
    assert result.stdout.isascii()
    found = json.loads(result.stdout, parse_constant=pytest.fail)
    devices, found["devices"] = found["devices"], found["devices"][:20]  # one of thousands, all alike
    valid_as_diagnosis().validate(found)
    found["devices"] = devices
    if code:
        assert re.fullmatch(r"gpuprof: [^\n]{20,2000}\n", result.stderr)
    else:
        assert result.stderr == ""
    return found


def good(rounds: int = 12) -> TraceBuilder:
    """Three sound steps; times start at 0."""
    builder = TraceBuilder()
    length = 80_000 * rounds + 40_000
    for step in range(3):
        at = step * length
        builder.step(step, at, at + length)
        for i in range(rounds):
            t = at + i * 80_000
            builder.op("aten::mm", t, t + 40_000, **{"Input Dims": [[8, 8]], "External id": rounds * step + i + 1})
            builder.launch("gemm", (t + 1_000, t + 6_000), (t + 8_000, t + 60_000))
    return builder
