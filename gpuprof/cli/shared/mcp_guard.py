"""The layer between an agent and the tools of `gpuprof mcp`.
It checks arguments, fences names in answers, and merges equal calls that run at the same time.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

from gpuprof.errors import GpuprofError
from gpuprof.units import Bytes, Characters, Convention

PLACES = ("path", "a", "b", "folder", "places")
"""Arguments that name a recording or a folder."""
LONGEST_ERROR: Convention[Characters] = 600
"""Longest error, characters."""
_IN_TOOLS = (
    (r" \(gpuprof \S+ --help shows the usage\)", ""),
    (r"\bgpuprof diagnose PATH\b", "the tool diagnose with a path"),
    (r"\bgpuprof try --list\b", "`gpuprof try --list` in a shell"),
    (r"(?<!`)\bgpuprof gpus lists\b", "`gpuprof gpus` in a shell lists"),
    (r"(?<!gpuprof project )--from GPU\b", "`gpuprof project --from GPU` in a shell"),
    (r"\bgpuprof (explain|diagnose|compare|project|try)(?! --)(?=[ ;,.:)]|$)", r"the tool \1"),
    (r"--fix(?= )", "fixes:"),
    (r"'?--(budget|until)\b'?", r"\1"),
    (r"(?<!gpuprof mcp )(?<!`gpuprof try )--yes\b", "`gpuprof try --yes`, which a user types in a shell,"),
)
"""Command-line wording in errors → wording for an agent."""
NEXT_STEPS = "\nnext_steps: "
"""Precedes the last line of a page: JSON that is already fenced."""
DOWNLOAD_BYTES: Convention[Bytes] = 1 << 30
"""Most bytes that are fetched of one URL."""


def limit_reading() -> None:
    """Makes this process and those that it starts read-only: nothing is converted or written; bounds downloads."""
    from gpuprof.nsight.convert import READ_ONLY
    from gpuprof.tracefile.remote import MOST_BYTES

    os.environ[READ_ONLY] = "1"
    os.environ.setdefault(MOST_BYTES, str(DOWNLOAD_BYTES))


def guarded(
    tool: Callable[..., str], allow_urls: bool, names: Callable[[], Collection[str]] = tuple
) -> Callable[..., str]:
    """Wraps a reading tool: refuses URLs unless allowed, merges equal calls, and fences names in its answer.
    `names`: returns the names in the recordings read by the call that has just ended in this thread.
    """
    merged = Merged(lambda **arguments: clean_text(tool(**arguments), names()))
    signature = inspect.signature(tool)

    @functools.wraps(tool)
    def call(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {name: _argument(name, value, allow_urls) for name, value in bound.arguments.items()}
        return merged(**arguments)

    return call


def clean_text(answer: str, names: Collection[str] = ()) -> str:
    """A tool's answer with names from recordings fenced; a Markdown answer is our own page that quotes names."""
    from gpuprof.report.untrusted import cleaned, fence_names

    if not answer.startswith("{"):
        page, mark, steps = answer.partition(NEXT_STEPS)
        return fence_names(page, names) + mark + steps
    return json.dumps(cleaned(json.loads(answer), names), separators=(",", ":"))


def clean_error(error: BaseException) -> str:
    """The one line of an error, which may quote a file."""
    return _one_line(in_tools(" ".join(str(error).split())[: 4 * LONGEST_ERROR]))


def _one_line(text: str) -> str:
    from gpuprof.report.names import escape, shorten

    return shorten(escape(text), LONGEST_ERROR)


def in_tools(text: str) -> str:
    """A command-line error reworded for the tools: `gpuprof explain` becomes the tool explain, `--fix` the argument
    fixes. Commands without a tool, such as `gpuprof trace`, stay."""
    for pattern, words in _IN_TOOLS:
        text = re.sub(pattern, words, text)
    return text


def _argument(name: str, value: Any, allow_urls: bool) -> Any:
    from gpuprof.report.untrusted import unfenced
    from gpuprof.tracefile.remote import url_of

    if isinstance(value, list):
        return [_argument(name, one, allow_urls) for one in value]
    if not isinstance(value, str):
        return value
    text = unfenced(value)
    if name in PLACES and not allow_urls and url_of(text) is not None:
        raise GpuprofError(
            f"{text}: this server reads local files only; whoever starts it allows URLs with gpuprof mcp --allow-urls"
        )
    return text


class Merged:
    """A function whose equal concurrent calls share one execution."""

    def __init__(self, function: Callable[..., str]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._running: dict[str, Future[str]] = {}

    def __call__(self, **arguments: Any) -> str:
        key = json.dumps(arguments, sort_keys=True, default=str)
        with self._lock:
            found = self._running.get(key)
            mine: Future[str] = Future()
            if found is None:
                self._running[key] = mine
        if found is not None:
            return found.result()
        try:
            answer = self._function(**arguments)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(answer)
            return answer
        finally:
            with self._lock:
                del self._running[key]


def strict_server() -> Any:
    """The SDK's server class, extended to refuse unknown arguments.
    Raises ModuleNotFoundError if the SDK is missing or older than 2.
    """
    from mcp.server.mcpserver import MCPServer  # pyright: ignore[reportMissingImports]
    from mcp.server.mcpserver.exceptions import ToolError  # pyright: ignore[reportMissingImports]

    class Strict(MCPServer):
        """Refuses unknown arguments, which the SDK would drop silently."""

        async def list_tools(self) -> Any:
            tools = await super().list_tools()
            return [
                one.model_copy(update={"input_schema": {**one.input_schema, "additionalProperties": False}})
                for one in tools
            ]

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            known = next((one.input_schema["properties"] for one in await self.list_tools() if one.name == name), None)
            unknown = sorted(set(arguments) - set(known)) if known is not None else []
            if unknown:
                from gpuprof.report.untrusted import fenced

                raise ToolError(f"{name} has no argument {fenced(unknown[0])}; it takes {', '.join(known or ())}")
            try:
                return await super().call_tool(name, arguments, context)
            except ToolError as error:
                if wrong := _wrong_arguments(error.__cause__):
                    raise ToolError(f"{name}: {wrong}") from None
                raise

    return Strict


def _wrong_arguments(cause: BaseException | None) -> str:
    """`a is missing`, `limit should be a valid integer`: what is wrong with a call's arguments, in one line; empty if
    nothing is. The SDK's own text has several lines, and names its classes and a web page.
    """
    from pydantic import ValidationError  # comes with mcp

    if not isinstance(cause, ValidationError):
        return ""
    found: dict[str, list[str]] = {}
    for one in cause.errors(include_url=False, include_context=False, include_input=False):
        said = "is missing" if one["type"] == "missing" else one["msg"].replace("Input should be", "should be", 1)
        found.setdefault(str(one["loc"][0]) if one["loc"] else "", []).append(said)
    return _one_line("; ".join(f"{name} {' or '.join(said)}" for name, said in found.items()))
