"""`gpuprof try`: applies fixes to the user's own command from outside, and measures them."""

from __future__ import annotations

import contextlib
import functools
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from gpuprof.cli.shared.option_types import WholeNumber
from gpuprof.cli.shared.output import GATE_FAILED, say, show, write
from gpuprof.errors import GpuprofError
from gpuprof.units import Convention, Names, WholeSeconds

if TYPE_CHECKING:
    from gpuprof.diagnosis.result.finding_model import Finding
    from gpuprof.record.launcher.command import Target
    from gpuprof.trial.fixes import FixToTry
    from gpuprof.trial.trial import Trial
    from gpuprof.trial.trial_subject import TrialSubject

BUDGET = "5m"
MOST_SHOWN: Convention[Names] = 5
"""Most paths named in a line of --list."""
LABELS = tuple(f"    {label:<8}" for label in ("write", "flag", "not for"))
"""Labels of lines of --list with text in a column."""
_UNITS_S: Convention[dict[str, WholeSeconds]] = {"s": 1, "m": 60, "min": 60, "h": 3600}
_WITH_VALUE = ("--fix", "--budget", "--rounds", "--until", "-m")


class _Try(click.Command):
    """Passes the target's words on unparsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours, words = split(args, _WITH_VALUE)
        return super().parse_args(ctx, [*ours, "--", *words] if words else ours)


def split(arguments: list[str], with_value: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """(our options, which come first, the target's words). with_value: options that are followed by a value."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "-":
        word = arguments[at]
        if word == "--":
            return arguments[:at], arguments[at + 1 :]
        at += 2 if word in with_value else 1
        if word.startswith("-m") and not word.startswith("--"):
            break
    return arguments[:at], arguments[at:]


def _budget(_: click.Context, __: click.Parameter, text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(s|m|min|h)?", text.strip())
    if found is None or float(found[1]) <= 0:
        raise click.BadParameter(f"{text!r} is not a time, such as 300s, 5m or 1h")
    return float(found[1]) * _UNITS_S[found[2] or "s"]


def _gain(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*[x×]?", text.strip())
    if found is None or not 1 < float(found[1]) < 1e6:
        raise click.BadParameter(f"{text!r} is not a gain above 1, such as 1.3x")
    return float(found[1])


@click.command(
    "try",
    cls=_Try,
    short_help="Apply fixes from outside and measure them.",
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option(
    "--fix", "fixes", multiple=True, metavar="FIX[=VALUE],…", help="Try these fixes (default: all that are advised)."
)
@click.option("--list", "listing", is_flag=True, help="Say what can be applied from outside here, and start nothing.")
@click.option(
    "--budget", default=BUDGET, show_default=True, callback=_budget, metavar="TIME", help="Take at most this long."
)
@click.option("--rounds", type=WholeNumber(1, 50), metavar="N", help="Measure each fix N times, whatever it takes.")
@click.option(
    "--until", callback=_gain, metavar="GAIN", help="Stop at the first combination that gains this much, such as 1.3x."
)
@click.option(
    "--yes", is_flag=True, help="Allow connections beyond this machine, and writes outside the scratch folder."
)
@click.option("--check", is_flag=True, help="Exit 1 if an advised fix is not confirmed.")
@click.option("--json", "as_json", is_flag=True, help="Print the trial as JSON.")
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="TARGET…")
def command(
    fixes: tuple[str, ...],
    listing: bool,
    budget: float,
    rounds: int | None,
    until: float | None,
    yes: bool,
    check: bool,
    as_json: bool,
    module: str | None,
    words: tuple[str, ...],
) -> int:
    """Run TARGET again with one fix after the other applied from outside, and measure what each gains.

    TARGET is what gpuprof trace was given: train.py --lr 1e-4, torchrun …, python …. Nothing is edited: fresh
    processes take turns, as it is and with each fix, without a profiler. They write to a scratch folder and are ended
    once they have been timed. The fixes are those that the latest run of the same command advises, and those that it
    finds worth trying. Without TARGET: the command of the latest run here.
    """
    asked = _asked(fixes)
    if not words and module is None:
        if listing:
            _show_list(None, (), as_json)
            return 0
        words = _words_of_latest(fixes)
    target = target_of(words, module, "gpuprof try")
    from gpuprof.trial.trial_subject import run_of_command

    folder = run_of_command(target.argv)
    if listing:
        _show_list(None if folder is None else _subject(folder), target.argv, as_json)
        return 0
    if folder is None:
        folder = _record(target, words, module, yes)
    _ask_for_consent(folder, yes)
    subject = _subject(folder)
    chosen = _choose(subject, asked, target.argv)
    if not chosen:
        _raise_if_failed(subject)
        say("no fix that could be applied from outside is advised here; gpuprof try --list shows all that exist")
        return GATE_FAILED if check and subject.diagnosis is None else 0
    trial = _run(target, subject, chosen, budget, rounds, yes, until)
    _keep(trial, subject.folder)
    _print(trial, as_json)
    return _check(trial) if check else 0


# -- what is asked for


def _asked(texts: tuple[str, ...]) -> list[Any]:
    from gpuprof.trial.fixes import parse

    return parse(",".join(texts)) if texts else []


def _words_of_latest(fixes: tuple[str, ...]) -> tuple[str, ...]:
    """The command of the latest run here, so that commands printed by a diagnosis can be pasted unchanged. Raises
    GpuprofError."""
    from gpuprof.record.base.redact import MASK
    from gpuprof.trial.trial_subject import latest_command

    example = " ".join(["gpuprof try", *(f"--fix {one}" for one in fixes), "train.py"])
    words = latest_command()
    if words is None:
        raise GpuprofError(f"nothing to run: {example} (no run here has a command that could be run again)")
    if any(MASK in word for word in words):
        raise GpuprofError(f"the latest run's command holds a secret, which is not kept: name the command: {example}")
    say(f"the command of the latest run: {shlex.join(words)}")
    return tuple(words)


def target_of(words: tuple[str, ...], module: str | None, name: str) -> Target:
    """The target to start. name: the gpuprof command, for messages. Raises GpuprofError."""
    if not sys.platform.startswith("linux"):
        raise GpuprofError(f"{name} runs on Linux only")
    from gpuprof.cli.trace import has_torch
    from gpuprof.record.launcher.command import CannotStart, resolve

    if module == "":
        raise click.UsageError("-m needs the name of a module")
    try:
        target = resolve(words, module, sys.executable, has_torch)
    except CannotStart as error:
        raise GpuprofError(str(error).replace("gpuprof trace", name)) from None
    if not target.recordable:
        raise GpuprofError(f"{target.notes[0]}, and nothing can be applied to it from outside")
    for note in target.notes:
        say(note)
    return target


def _subject(folder: Path) -> TrialSubject:
    from gpuprof.trial.trial_subject import subject_of

    return subject_of(folder)


def _record(target: Target, words: tuple[str, ...], module: str | None, yes: bool) -> Path:
    """Records the command once, as `gpuprof trace --stop` does, but with its writes redirected to scratch. Raises
    GpuprofError."""
    from gpuprof.trial.starter import Starter
    from gpuprof.trial.trial_subject import run_of_command

    say("no run of this command here yet: it is recorded first (gpuprof trace --stop), and writes to a scratch folder")
    with _terminated_like_interrupted(), Starter(target, yes, None if yes else Path.cwd(), _say_once) as starter:
        why = starter.record(["-m", module, *words] if module else ["--", *words])
    folder = run_of_command(target.argv)
    if folder is None:
        reason = f" ({why or 'it took no optimizer step in a Python with torch'})"
        raise GpuprofError(f"the command could not be recorded{reason}, so nothing can be tried on it")
    return folder


def _ask_for_consent(folder: Path, yes: bool) -> None:
    """Raises GpuprofError if the recorded program changes files that a trial cannot protect, and --yes is not given."""
    from gpuprof.trial.starter import sandbox_of
    from gpuprof.trial.written import changes_of

    escape = None if yes or sandbox_of(False, Path.cwd()).keeps_all else changes_of(folder).escape
    if escape is not None:
        raise GpuprofError(
            f"when the program was recorded, {escape}: trials redirect what Python writes to a scratch folder, and "
            "check only this folder; --yes tries anyway"
        )


def _raise_if_failed(subject: TrialSubject) -> None:
    """Raises GpuprofError if the program itself failed before enough of its steps were recorded for a diagnosis."""
    run = subject.run
    ended = run.exit_signal or (f"exit code {run.exit_code}" if run.exit_code else None)
    if ended is not None and (subject.diagnosis is None or subject.diagnosis.step_ns is None):
        raise GpuprofError(
            f"the program itself ended with {ended} before enough steps were recorded, so that no fix is known: "
            "correct that first, or name fixes with --fix"
        )


def _choose(subject: TrialSubject, asked: list[Any], argv: Sequence[str]) -> list[FixToTry]:
    """The fixes to try: the requested ones, else the advised ones."""
    from gpuprof.trial.fixes import advised, of_iteration, with_predictions
    from gpuprof.trial.trial_subject import predict_workers, with_flags

    if asked:
        found, _ = advised(subject.diagnosis)
        found = [*found, *(one.candidate for one in of_iteration(subject.diagnosis))]
        chosen = [predict_workers(subject, one) for one in with_predictions(asked, found)]
    else:
        chosen, by_hand = _advised(subject)
        for finding in by_hand:
            say(f"not tried, to be applied by hand: {finding.title}: {' '.join(finding.fix.split())}")
    return [with_flags(subject, one, argv) for one in chosen]


def _advised(subject: TrialSubject) -> tuple[list[FixToTry], list[Finding]]:
    """The fixes tried by default, and the findings that have to be applied by hand."""
    from gpuprof.trial.fixes import advised
    from gpuprof.trial.trial_subject import with_workers

    found, by_hand = advised(subject.diagnosis)
    return with_workers(subject, found), by_hand


# -- the trial


def _run(
    target: Target, subject: TrialSubject, chosen: list[FixToTry], budget: float, rounds: int | None, yes: bool,
    until: float | None,
) -> Trial:  # fmt: skip
    from gpuprof.trial.plan import FEWEST_ROUNDS, process_seconds, seconds
    from gpuprof.trial.run_trial import run_trial
    from gpuprof.trial.starter import Starter

    step_s = subject.step_s or 0.0
    process_s = process_seconds(subject.start_s, step_s, 20, 40)
    expected = seconds(len(chosen), rounds or FEWEST_ROUNDS, process_s) + process_s
    most = "" if rounds else f", at most {_minutes(budget)}"
    say(
        f"run: {subject.folder.name}; this will take about {_minutes(expected if rounds else min(expected, budget))}"
        f"{most}; Ctrl-C ends it"
    )
    with _terminated_like_interrupted(), Starter(target, yes, None if yes else Path.cwd(), _say_once) as starter:
        return run_trial(
            starter, target.argv, chosen, run=subject.folder, world_size=subject.world_size, budget_s=budget,
            rounds=rounds, tell=say, until=until,
        )  # fmt: skip


@contextlib.contextmanager
def _terminated_like_interrupted() -> Any:
    """SIGTERM and SIGHUP run the same clean-up as Ctrl-C."""

    def leave(number: int, _: Any) -> NoReturn:
        raise KeyboardInterrupt(number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@functools.cache
def _say_once(text: str) -> None:
    say(text)


def _keep(trial: Trial, folder: Path) -> None:
    from gpuprof.trial.trial_json import keep

    try:
        say(f"kept: {keep(trial, folder)}")
    except OSError as error:
        say(f"the trial could not be kept in {folder}: {error.strerror}")


def _print(trial: Trial, as_json: bool) -> None:
    if as_json:
        from gpuprof.trial.trial_json import dumps

        write(dumps(trial) + "\n")
        return
    from gpuprof.report.terminal.trial_terminal import render

    show(lambda width: render(trial, width))


def _check(trial: Trial) -> int:
    """1 if a fix that the diagnosis is sure of, or that was requested, is not confirmed, or the gain is not reached."""
    missing = [
        row for row in trial.rows
        if len(row.fixes) == 1 and row.status != "confirmed" and row.advised != "worth_trying"
    ]  # fmt: skip
    if trial.until is not None:
        if trial.stop.reason == "until":
            return 0
        say(f"check failed: {trial.until:g}× is not reached")
        return GATE_FAILED
    for row in missing:
        say(f"check failed: {row.name} is {row.status.replace('_', ' ')}")
    return GATE_FAILED if missing else 0


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


# -- the list


def _show_list(subject: TrialSubject | None, argv: Sequence[str], as_json: bool) -> None:
    """Every patch: what it does, what it takes, and what it cannot do; the advised ones first."""
    listing = _listing(subject, argv)
    if as_json:
        import json

        write(json.dumps(listing, indent=2) + "\n")
        return
    from gpuprof.report.names import escape

    write("".join(f"{line}\n" for one in _listing_lines(listing) for line in _wrapped(escape(one))))


def _wrapped(line: str) -> list[str]:
    """A line wrapped to the terminal's width, at blanks only; continuation lines are indented to its text."""
    import shutil
    import textwrap

    indent = " " * (12 if line.startswith(LABELS) else 4)
    width = max(40, shutil.get_terminal_size().columns)
    whole = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(line, width, subsequent_indent=indent, drop_whitespace=True, **whole)  # type: ignore[arg-type]


def _listing(subject: TrialSubject | None, argv: Sequence[str]) -> dict[str, Any]:
    from gpuprof.trial.fixes import FixToTry
    from gpuprof.trial.patches import names, patch_for
    from gpuprof.trial.trial import TriedFix
    from gpuprof.trial.trial_subject import with_flags
    from gpuprof.trial.written import changes_of

    found, by_hand = ([], []) if subject is None else _advised(subject)
    known = {one.fix.name: one.fix for one in found}
    rows = []
    for one in map(patch_for, names()):
        fix = known.get(one.name) or TriedFix(one.name, one.default)
        own = None if subject is None else with_flags(subject, FixToTry(fix), argv).flags
        rows.append({
            "name": one.name, "advised": str(fix) if one.name in known else None, "does": one.does, "line": one.line,
            "cannot": one.cannot, "default": one.default or None, "values": one.values or None,
            "flags": None if own is None else str(own),
        })  # fmt: skip
    written = None if subject is None else changes_of(subject.folder)
    return {
        "fixes": rows,
        "by_hand": [{"finding": one.id, "title": one.title, "fix": one.fix} for one in by_hand],
        "written": None if written is None else {
            "inside": list(written.inside), "elsewhere": list(written.elsewhere), "native": list(written.native),
        },
    }  # fmt: skip


def _listing_lines(listing: dict[str, Any]) -> list[str]:
    lines = []
    for one in sorted(listing["fixes"], key=lambda row: row["advised"] is None):
        value = f"={one['default']}   ({one['values']})" if one["default"] else ""
        lines.append(f"{one['name']}{value}{'   advised: ' + one['advised'] if one['advised'] else ''}")
        lines.append(f"    {one['does']}")
        lines += [
            f"    write   {line}" for line in one["line"].replace("{value}", one["default"] or "VALUE").splitlines()
        ]
        if one["flags"]:
            lines.append(f"    flag    {one['flags']}   (the program's own, tried first)")
        lines.append(f"    not for {one['cannot']}")
    for finding in listing["by_hand"]:
        lines.append(f"by hand: {finding['title']}")
        lines += [f"    write   {line}" for line in finding["fix"].splitlines()]
    where = {
        "inside": "the program writes in this folder (trials redirect it to scratch)",
        "elsewhere": "the program writes elsewhere (needs --yes)",
        "native": "changed by native code or another program (needs --yes)",
    }
    for key, title in where.items():
        paths = (listing["written"] or {}).get(key) or []
        if paths:
            more = f" and {len(paths) - MOST_SHOWN} more" if len(paths) > MOST_SHOWN else ""
            lines.append(f"{title}: {', '.join(paths[:MOST_SHOWN])}{more}")
    return lines
