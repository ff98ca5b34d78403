"""What torch.compile did in this process: graph breaks, recompilations, given-up functions and CUDA graph skips, with
their reasons and the lines of code that they come from.

This needs no logging or tracing: Dynamo keeps all of this anyway, and it is read when the facts are written.
`torch._dynamo` is never imported here. Lines of source code, which Dynamo quotes in its reasons, are left out.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from ..base.code_paths import shortened
from ..base.redact import redact_text
from .performance_warnings import warned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Characters, Convention, Entries, Functions, Levels


MOST_COMPILATIONS: Convention[Entries] = 1000
"""Compilations whose facts Dynamo is asked to keep. Its default is 64; a model of 30 layers with a graph break in each
exceeds that."""
MOST_FUNCTIONS: Convention[Functions] = 200
MOST_VERSIONS: Convention[Entries] = 64
MOST_BREAKS: Convention[Entries] = 100
MOST_REASONS: Convention[Entries] = 20
LONGEST_TEXT: Convention[Characters] = 300
DEEPEST: Convention[Levels] = 8
"""Calls of the user's code that are kept for each break: the innermost ones."""

_COMPILE_ID = re.compile(r"(?:\[?!?\d+/)?(\d+)/(\d+)(?:_\d+)?\]?")
"""`3/1`: version 1 of function 3. Compiled autograd puts a number of its own before it."""
_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)")
_PLACE = re.compile(r"#\s*(?P<file>[^\s#]+):(?P<line>\d+) in (?P<function>[\w<>.]+)")
_VERSION = re.compile(r"^\s*-?\s*\d+/\d+:\s*")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_VALUE = re.compile(r"\d+(\.\d+)?(e[-+]?\d+)?|'[^']*'|\"[^\"]*\"")
_FOLDERS = re.compile(r"(?<![\w:/])(?:[A-Za-z]:)?[/\\][^\s`'\"]*[/\\](?=[^\s`'\"/\\]+\.py\b)")
"""Folders of a source file in a text."""
_EXPLANATION = re.compile(r"Explanation: (.+)")
_RAISED = re.compile(r"Developer debug context: (raised exception .+)")
_HINT = re.compile(r"Hint: (.+)")
_NO_HINT = re.compile(
    r"(report|file|open) an issue|Dynamo bug|running in eager|difficult to debug|is fundamental", re.I
)
"""Hints that say nothing of what to do."""
_SKIPS = re.compile(r"(skipping|disabling) cudagraphs", re.IGNORECASE)
_FOUND = re.compile(r"[.\s]*Found from")
_LINE = re.compile(r'File "([^"\n]+)", line (\d+)')
_LIMIT = re.compile(r"recompile limit exceeded|(cache_size_limit|recompile_limit) reached|CacheLimitExceeded", re.I)
_COUNTERS = {
    "stats": ("calls_captured", "unique_graphs"),
    "frames": ("total", "ok"),
    "inductor": (
        "cudagraph_skips", "fxgraph_cache_hit", "fxgraph_cache_miss", "pattern_matcher_count", "extern_calls",
        "cudagraph_recorded_non_static_inputs",
    ),
    "aot_autograd": ("total", "ok", "autograd_cache_hit", "autograd_cache_miss"),
}  # fmt: skip


def keep_more(module: Any) -> None:
    """Lets Dynamo keep the facts of more compilations. module: `torch._dynamo.utils`. Never raises."""
    try:
        if len(module.get_compilation_metrics()) < MOST_COMPILATIONS:
            module.set_compilation_metrics_limit(MOST_COMPILATIONS)
    except Exception:  # a torch without that
        pass


def facts() -> dict[str, Any] | None:
    """As rank<N>.json has it; None where nothing was compiled, or it cannot be read. Never raises."""
    module = sys.modules.get("torch._dynamo.utils")
    if module is None:
        return None
    begun = time.perf_counter_ns()
    keep_more(module)  # where it was imported before us
    try:
        found = _facts(module)
    except Exception:  # this version of torch keeps them differently
        return None
    return None if found is None else found | {"read_ns": time.perf_counter_ns() - begun}


def _facts(module: Any) -> dict[str, Any] | None:
    counters = {
        group: {name: int(count) for name in names if isinstance(count := values.get(name), int) and count}
        for group, names in _COUNTERS.items()
        if (values := module.counters.get(group))
    }
    compilations = list(module.get_compilation_metrics())
    reasons = list(getattr(module, "graph_break_reasons", ()))
    if not (compilations or reasons or counters.get("frames")):
        return None
    roots = [os.getcwd(), *(os.path.abspath(entry) for entry in sys.path if isinstance(entry, str))]

    known: dict[str, str] = {}

    def place(file: Any) -> str:
        if file not in known:
            known[file] = shortened(str(file), roots)[1]
        return known[file]

    functions, left_out = _functions(compilations, place)
    return {
        "counters": counters,
        "functions": functions,
        "functions_left_out": left_out,
        "breaks": _breaks(reasons, place),
        "cudagraph_skips": _skips(compilations, place),
        "recompile_limit": _limit(),
    }


def _functions(compilations: list[Any], place: Callable[[Any], str]) -> tuple[list[dict[str, Any]], int]:
    """Compiled functions with all of their versions, and how many are left out."""
    found: dict[int, dict[str, Any]] = {}
    files = {str(file) for one in compilations if (file := getattr(one, "co_filename", None))}

    def place_of_end(end: str) -> str:
        return place(next((file for file in files if file.endswith(end)), end))

    reasons: dict[int, dict[str, dict[str, Any]]] = {}
    for one in compilations:
        parts = _COMPILE_ID.fullmatch(str(getattr(one, "compile_id", None)))
        if parts is None:
            continue
        number = int(parts[1])
        row = found.setdefault(number, _empty(number))
        _name(row, one, place)
        row["compile_us"] += _number(one, "duration_us")
        row["ended_unix_us"] = max(row["ended_unix_us"], _number(one, "start_time_us") + _number(one, "duration_us"))
        if getattr(one, "is_forward", None) is False:
            continue
        row["ops"] = max(row["ops"], _number(one, "graph_op_count"))
        _add_ops(row["ops_of_versions"], int(parts[2]), _number(one, "graph_op_count"))
        row["guards"] = max(row["guards"], _number(one, "guard_count"))
        row["guard_us"] = max(row["guard_us"], _number(one, "guard_latency_us"))
        failure = getattr(one, "fail_reason", None)
        if failure and _LIMIT.search(f"{failure} {getattr(one, 'fail_type', '')}"):
            row["limit"] = True
        elif failure:
            row |= {"failed": _first_line(failure), "failed_at": _failed_at(one, place)}
            row |= {f"failed_{key}": text for key, text in _explained(str(failure)).items()}
        elif getattr(one, "has_guarded_code", None):
            row["versions"] += 1
        again = getattr(one, "recompile_reason", None)
        if again:
            _add_reason(reasons.setdefault(number, {}), str(again), place_of_end)
    rows = [row | {"recompiles": list(reasons.get(number, {}).values())} for number, row in sorted(found.items())]
    return rows[:MOST_FUNCTIONS], max(len(rows) - MOST_FUNCTIONS, 0)


def _add_ops(ops: list[int], version: int, count: int) -> None:
    """Notes the ops of a version, numbered from 0."""
    if version < MOST_VERSIONS:
        ops += [0] * (version + 1 - len(ops))
        ops[version] = max(ops[version], count)


def _failed_at(one: Any, place: Callable[[Any], str]) -> dict[str, Any] | None:
    """The line for which a function was given up."""
    file, line = getattr(one, "fail_user_frame_filename", None), _number(one, "fail_user_frame_lineno")
    return {"file": place(file), "line": line} if file and line else None


def _empty(number: int) -> dict[str, Any]:
    names: dict[str, Any] = {"id": number, "function": None, "file": None, "line": None, "resumed_at": None}
    return names | {
        "versions": 0, "ops": 0, "ops_of_versions": [], "guards": 0, "guard_us": 0, "compile_us": 0,
        "ended_unix_us": 0, "limit": False, "failed": None, "failed_at": None, "failed_detail": None,
        "failed_hint": None,
    }  # fmt: skip


def _name(row: dict[str, Any], one: Any, place: Callable[[Any], str]) -> None:
    name, file = getattr(one, "co_name", None), getattr(one, "co_filename", None)
    if row["function"] is not None or not name:
        return
    resumed = _RESUMED.fullmatch(str(name))
    row["function"] = (resumed["function"] if resumed else str(name))[:100]
    row["resumed_at"] = int(resumed["line"]) if resumed else None
    row["file"] = place(file) if file else None
    row["line"] = _number(one, "co_firstlineno") or None


def _add_reason(kept: dict[str, dict[str, Any]], text: str, place: Callable[[Any], str]) -> None:
    """Counts a reason; reasons that differ only in a value count as one. place: maps a file, of which torch keeps the
    end of the path, to its place."""
    text = _VERSION.sub("", text.strip().split("\n")[0])
    where = _PLACE.search(text)
    guard = re.split(r"\s+#\s", text, maxsplit=1)[0]
    key = _VALUE.sub("…", guard)
    if key in kept:
        kept[key]["count"] += 1
    elif len(kept) < MOST_REASONS:
        kept[key] = {
            "guard": _short(guard),
            "file": place(where["file"]) if where else None,
            "line": int(where["line"]) if where else None,
            "function": where["function"][:100] if where else None,
            "count": 1,
        }


def _breaks(reasons: list[Any], place: Callable[[Any], str]) -> list[dict[str, Any]]:
    """Graph breaks by reason and place, most frequent first."""
    found: dict[tuple[str, tuple[Any, ...]], dict[str, Any]] = {}
    for one in reasons:
        text = str(one.reason)
        calls = tuple((call.filename, call.lineno, call.name) for call in one.user_stack)[-DEEPEST:]
        key = _ADDRESS.sub("", text)[:LONGEST_TEXT], calls[-1:]
        if key not in found:
            rows = [{"file": place(file), "line": line, "function": str(name)[:100]} for file, line, name in calls]
            found[key] = {"reason": _first_line(text), **_explained(text), "calls": rows, "count": 0}
        found[key]["count"] += 1
    return sorted(found.values(), key=lambda row: -row["count"])[:MOST_BREAKS]


def _skips(compilations: list[Any], place: Callable[[Any], str]) -> list[dict[str, Any]]:
    """Why CUDA graphs were not used, where torch says so: while compiling, or in a warning at run time."""
    found: dict[str, int] = {}
    texts: Iterable[tuple[Any, int]] = (
        *((getattr(one, "cudagraph_skip_reason", None), 1) for one in compilations),
        *((one["text"], one["count"]) for one in warned.facts() if _SKIPS.search(one["text"])),
    )
    for text, count in texts:
        if text:
            reason = _skip(str(text), place)
            found[reason] = max(found.get(reason, 0) + 1, count)
    return [{"reason": reason, "count": count} for reason, count in list(found.items())[:MOST_REASONS]]


def _skip(text: str, place: Callable[[Any], str]) -> str:
    """`mutated inputs (1 instances) (train.py:25)`: a reason, and the innermost line of the stack trace below it."""
    reason = _FOUND.split(_SKIPS.sub("", text).strip().removeprefix("due to").strip(), maxsplit=1)[0]
    lines = _LINE.findall(text)
    return _first_line(reason + (f" ({place(lines[-1][0])}:{lines[-1][1]})" if lines else ""))


def _limit() -> int | None:
    """Number of versions of one function beyond which Dynamo runs it as plain Python."""
    config = sys.modules.get("torch._dynamo.config")
    for name in ("recompile_limit", "cache_size_limit"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return None


def _explained(text: str) -> dict[str, str | None]:
    """Dynamo's explanation of a reason, and the first of its hints that says what to do; None: there is none."""
    found = _RAISED.search(text) or _EXPLANATION.search(text)
    hint = next((one for one in _HINT.findall(text) if not _NO_HINT.search(one)), None)
    return {"detail": found and _short(found[1]), "hint": hint and _short(hint)}


def _first_line(text: str) -> str:
    return _short(text.strip().split("\n")[0])


def _short(text: str) -> str:
    return redact_text(_FOLDERS.sub("", _ADDRESS.sub("", " ".join(text.split()))))[:LONGEST_TEXT]


def _number(found: Any, name: str) -> int:
    value = getattr(found, name, None)
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else 0
