"""`gpuprof skill`: prints the guide for agents, or installs it as a skill folder."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from gpuprof.cli.shared.output import say, write
from gpuprof.errors import GpuprofError

NAME = "gpuprof"
FILE = "SKILL.md"


@click.command(short_help="Print or install the skill for agents.")
@click.option(
    "--install", type=click.Path(path_type=Path), metavar="DIR",
    help="Write it to DIR/gpuprof/SKILL.md, such as ~/.claude/skills or .claude/skills.",
)  # fmt: skip
def command(install: Path | None) -> int:
    """Print a short guide to gpuprof for coding agents (SKILL.md), or install it into a folder of skills."""
    text = (files("gpuprof") / "data" / "skill" / FILE).read_text(encoding="utf-8")
    if install is None:
        write(text)
        return 0
    target = install.expanduser() / NAME / FILE
    if target.exists() and not target.read_text(encoding="utf-8", errors="replace").startswith(f"---\nname: {NAME}\n"):
        raise GpuprofError(f"{target} is there already and is not gpuprof's: remove it, or name another folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GpuprofError(f"{target}: the skill cannot be written: {error.strerror}") from error
    say(f"skill: {target}")
    return 0
