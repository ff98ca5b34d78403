"""A client that speaks to `gpuprof mcp` over stdin and stdout."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.command import variables
from helpers.paths import ROOT


def client_of(cwd: Path, *options: str, **env: str) -> Any:
    """A client that starts `gpuprof mcp` and speaks to it."""
    pytest.importorskip("mcp.server.mcpserver", reason="the extra [mcp] is not installed")
    from mcp import Client, StdioServerParameters

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "gpuprof", "mcp", *options], cwd=str(cwd),
        env=variables(PYTHONPATH=str(ROOT), **env),
    )  # fmt: skip
    return Client(server, read_timeout_seconds=200)


def texts(cwd: Path, calls: list[tuple[str, dict[str, Any]]], *options: str, **env: str) -> list[tuple[bool, str]]:
    """(whether it is an error, its text) for each call's answer."""

    async def ask() -> list[tuple[bool, str]]:
        async with client_of(cwd, *options, **env) as client:
            found = [await client.call_tool(name, arguments) for name, arguments in calls]
            return [(bool(one.is_error), one.content[0].text) for one in found]

    return asyncio.run(ask())
