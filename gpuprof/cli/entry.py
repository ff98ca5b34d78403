"""`gpuprof`: finds the command, runs it, and turns every error into one line and an exit code.

0: done. 1: a gate failed. 2: gpuprof could not do it. 130: interrupted.
"""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from gpuprof.cli.shared.output import discard, say
from gpuprof.errors import GpuprofError
from gpuprof.units import Code, Convention

COMMANDS = {
    "trace": "gpuprof.cli.trace",
    "diagnose": "gpuprof.cli.diagnose",
    "report": "gpuprof.cli.report",
    "try": "gpuprof.cli.try_",
    "compare": "gpuprof.cli.compare",
    "project": "gpuprof.cli.project",
    "memory": "gpuprof.cli.memory",
    "fit": "gpuprof.cli.fit",
    "attach": "gpuprof.cli.attach",
    "hang": "gpuprof.cli.hang",
    "view": "gpuprof.cli.view",
    "export": "gpuprof.cli.export",
    "explain": "gpuprof.cli.explain",
    "gpus": "gpuprof.cli.gpus",
    "doctor": "gpuprof.cli.doctor",
    "history": "gpuprof.cli.history",
    "clean": "gpuprof.cli.clean",
    "mcp": "gpuprof.cli.mcp",
    "skill": "gpuprof.cli.skill",
    "demo": "gpuprof.cli.demo",
}
"""Modules of the commands, each with a `command`, in the order of the help. They import nothing heavy."""

LAUNCHERS = ("python", "python3", "torchrun", "accelerate", "deepspeed")
"""Commands that start a training: a user who types one after `gpuprof` wants to record it."""
SYNONYMS = {
    "record": "trace", "profile": "trace", "run": "trace", "analyze": "diagnose", "analyse": "diagnose",
    "diff": "compare", "open": "view", "check": "doctor", "list": "history",
}  # fmt: skip
"""Names of other tools for our commands."""
INTERRUPTED: Convention[Code] = 130
FAILED: Convention[Code] = 2


class Commands(click.Group):
    """A group that imports a command when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return import_module(COMMANDS[cmd_name]).command if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's, but with a hint if a path is given in place of a command."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            raise click.UsageError(_no_command(name, args[1:]), ctx)
        return super().resolve_command(ctx, args)


def _no_command(name: str, rest: Sequence[str]) -> str:
    """The error for a word that is not a command, with a suggestion."""
    words = " ".join(shlex.quote(word) for word in (name, *rest))
    if name.endswith(".py") or name in LAUNCHERS:
        return f"{name!r} is not a command; to record it: gpuprof trace {words}?"
    if Path(name).exists():
        return f"{name!r} is not a command; to diagnose it: gpuprof diagnose {words}"
    from difflib import get_close_matches

    known = SYNONYMS.get(name.lower())
    near = [known] if known else get_close_matches(name.lower(), COMMANDS, 1, 0.6)
    meant = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(COMMANDS)}"
    return f"there is no command {name!r}; {meant}"


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from gpuprof import __version__

        click.echo(f"gpuprof {__version__}")
        ctx.exit()


class _NoVariable(click.Option):
    """An option that no environment variable sets: the user may use GPUPROF_VERSION for something else."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        return None


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"auto_envvar_prefix": "GPUPROF", "help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, cls=_NoVariable,
    help="Show the version and exit.",
)  # fmt: skip
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Find out why a fine-tuning step takes as long as it does, and what to change.

    Every option can also be set by an environment variable, for example GPUPROF_DIAGNOSE_TOP for diagnose --top.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; no exception leaves it."""
    try:
        if "_GPUPROF_COMPLETE" in os.environ:  # the shell asks for completions
            commands.main(prog_name="gpuprof")
        with commands.make_context("gpuprof", list(sys.argv[1:] if arguments is None else arguments)) as ctx:
            code: Any = commands.invoke(ctx)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except (KeyboardInterrupt, click.Abort):
        if sys.stderr is not None and sys.stderr.isatty():
            print(file=sys.stderr)  # the terminal has just shown ^C
        return INTERRUPTED
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "gpuprof"
        say(f"{error.format_message().rstrip('.')} ({where} --help shows the usage)")
        return FAILED
    except BrokenPipeError:  # the reader of a help text has closed the pipe
        discard(sys.stdout)
        return 0
    except GpuprofError as error:
        _show_traceback()
        say(str(error))
        return error.exit_code
    except MemoryError:
        _show_traceback()
        say("not enough memory for this trace: record fewer steps, or use a larger machine")
        return FAILED
    except Exception as error:
        hint = "" if _show_traceback() else "; GPUPROF_DEBUG=1 shows where, please report it"
        say(f"unexpected {type(error).__name__}: {error}{hint}")
        return FAILED


def _show_traceback() -> bool:
    """Prints the traceback if GPUPROF_DEBUG is set; returns whether it did."""
    asked = os.environ.get("GPUPROF_DEBUG", "").lower() not in ("", "0", "false", "no")
    if asked:
        traceback.print_exc()
    return asked
