"""Runs a program that others wrote, unmodified or with a fix, and times its steps from outside.

    python -m scenarios.support.program NAME [--fix FIX] [--timed] [--free N [--drained N]]

The program is a module of an installed package or a script of a checkout ($SCENARIO_CHECKOUTS). It runs in this
process, unmodified, in a fresh folder with the models and data of `material`. Its steps are counted by a hook that
PyTorch calls after the optimizer's step. Nothing else of it is changed; once enough steps are timed, it ends.
"""

from __future__ import annotations

import argparse
import importlib
import os
import runpy
import sys
import tempfile
from pathlib import Path

from scenarios.catalogue import Fix, Program, Scenario, scenario
from scenarios.support import material
from scenarios.support.from_outside import FromOutside
from scenarios.support.run import Run

CHECKOUTS = "SCENARIO_CHECKOUTS"
"""Variable for the folder with checkouts of projects whose programs are scripts."""


def script_of(program: Program) -> Path:
    """Path of its script. FileNotFoundError, which says what to do, if it does not exist."""
    assert program.script is not None
    folder = os.environ.get(CHECKOUTS)
    path = Path(folder or ".").resolve() / program.script
    if folder is None or not path.is_file():
        raise FileNotFoundError(f"no {path}: set {CHECKOUTS} to the folder that holds {program.script}")
    return path


def command(program: Program, fix: Fix | None, tiny: bool) -> list[str]:
    """What Python runs: `-m module` or a script, with arguments. An edited script is in the workplace."""
    if program.module:
        return ["-m", program.module, *program.words(fix, tiny)]
    script = script_of(program)
    return [script.name if fix and fix.edits else str(script), *program.words(fix, tiny)]


def edited(text: str, edits: dict[str, str]) -> str:
    """A script's text with these pieces replaced. ValueError if one does not occur."""
    for before, after in edits.items():
        if before not in text:
            raise ValueError(f"the script has no {before!r}: this edit was made for another version of it")
        text = text.replace(before, after)
    return text


def variables(program: Program, fix: Fix | None) -> dict[str, str]:
    """Variables to set in its environment, so that nothing is downloaded."""
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return offline | program.environment | (fix.environment if fix else {})


def workplace(program: Program, folder: Path, fix: Fix | None = None) -> Path:
    """Fills the folder with links to models, data and, for a script, the files next to it, and with the script where
    the fix edits it."""
    if fix and fix.edits:
        script = script_of(program)
        (folder / script.name).write_text(edited(script.read_text(encoding="utf-8"), fix.edits), encoding="utf-8")
    beside = [script_of(program).parent] if program.script else []
    for source in (material.folder(), *beside):
        for path in source.iterdir():
            link = folder / path.name
            if not link.exists():
                link.symlink_to(path)
    return folder


def run_here(entry: Scenario, fix: Fix | None, run: Run, patch: FromOutside | None = None) -> None:
    """Runs it in this process. `run` is called at each optimizer step, and the program ends after its last one.
    `patch`: the fix that was applied to this process.

    SystemExit ends it. Errors that this causes in a program do not count as its failure.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    assert entry.program is not None
    steps = 0

    def stepped(*_) -> None:
        nonlocal steps
        if patch is not None:
            patch.models.step_ended()
            if steps == run.count - 1:
                patch.check()
        if steps < run.count:
            run.end_step(steps)
        steps += 1
        if steps == run.count:
            run.end()
            raise SystemExit(0)

    hook = register_optimizer_step_post_hook(stepped)
    kind, *words = command(entry.program, fix, run.tiny)
    try:
        if kind == "-m":
            module, *words = words
            sys.argv[1:] = words
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(kind).parent))
            sys.argv = [kind, *words]
            runpy.run_path(kind, run_name="__main__")
    except BaseException:
        if steps < run.count:
            raise
    finally:
        hook.remove()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--fix", default="", help="the change to make; none if left out")
    parser.add_argument("--timed", action="store_true", help="time steps, and print how long they took")
    parser.add_argument("--free", type=int, default=None, help="free-running steps to time")
    parser.add_argument("--drained", type=int, default=None, help="with --free: steps in its turn before those")
    args = parser.parse_args()
    entry = scenario(args.name)
    fix = entry.fix(args.fix)
    assert entry.program is not None, f"{entry.name} has a program of its own"
    os.environ |= variables(entry.program, fix)
    patch = FromOutside(fix.patch) if fix and fix.patch else None
    for module in ("torch", *entry.program.preload):
        importlib.import_module(module)
    material.make(*entry.program.material)
    run = Run(args.fix, None, args.timed, free=args.free, drained=args.drained)
    with tempfile.TemporaryDirectory(prefix="program-") as folder:
        os.chdir(workplace(entry.program, Path(folder), fix))
        try:
            if patch is not None:
                patch.models.watch()
            run_here(entry, fix, run, patch)
        finally:
            os.chdir("/")


if __name__ == "__main__":
    main()
