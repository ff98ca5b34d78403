"""The scenarios from a checkout.

    python -m scenarios list
    python -m scenarios run NAME [--fix [WHICH]] [--trace] [--steps N]
    python -m scenarios record NAME … --out DIR [--fix WHICH] [--within S]
    python -m scenarios measure [NAME …] [--rounds 5] [--out DIR [--record [VARIANTS]] [--as-is] [--data WHICH] [--try]]
    python -m scenarios parallel [NAME …] --out DIR [--rounds 5] [--processes N]
    python -m scenarios campaign [NAME …] --out DIR [--seconds S] [--each S] [--rounds 2] [--no-record]
        [--alone] [--fixed FIX] [--plan]
    python -m scenarios truth RESULTS

`run` starts the program, with `--trace` under `gpuprof trace`. On a machine without a GPU it runs a tiny model.
`measure` times it unmodified and with each fix, in fresh alternating processes, and writes `truth.json`. `parallel`
does the same for tensor, pipeline and sharded data parallel training on four GPUs, and records every variant on all
ranks.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from scenarios.campaign import campaign
from scenarios.campaign_results import truths
from scenarios.catalogue import Scenario, campaign_names, names, scenario, scenarios
from scenarios.measure import launched, measure
from scenarios.parallel import PROGRAMS, parallel
from scenarios.record import is_tiny, record

FIRST = "(the first)"


def parsed() -> argparse.Namespace:
    """The command line; options that contradict each other end the program with a line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m scenarios", description="Fine-tunes with a known bottleneck")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what there is")
    run = commands.add_parser("run", help="run one")
    run.add_argument("name")
    run.add_argument("--fix", nargs="?", const=FIRST, help="with a fix: the first, or the one that is named")
    run.add_argument("--trace", action="store_true", help="under gpuprof trace")
    run.add_argument("--steps", type=int)
    run.add_argument("--timed", action="store_true", help="print how long its steps took")
    timing = commands.add_parser("measure", help="time them, and write truth.json")
    timing.add_argument("names", nargs="*")
    timing.add_argument("--rounds", type=int, default=5)
    timing.add_argument("--out", type=Path, metavar="DIR", help="write DIR/NAME.json in place of NAME/truth.json")
    timing.add_argument(
        "--record",
        metavar="VARIANTS",
        type=int,
        nargs="?",
        const=1,
        default=0,
        help="with --out: also record each as it is, into DIR/NAME, or that many variants of it, into DIR/NAME.FIX",
    )
    timing.add_argument("--as-is", action="store_true", help="with --out: only the unmodified program")
    timing.add_argument("--data", default="", help="with --out: which lengths, where a scenario has several")
    timing.add_argument(
        "--try", dest="tries", action="store_true",
        help="with --out: also apply what gpuprof try has of the fixes to the unmodified program, into NAME.trial.json",
    )  # fmt: skip
    timing.add_argument("--gib", type=float, help="GPU memory of a process, in place of what scenario.json says")
    recording = commands.add_parser("record", help="record them with gpuprof trace, one after the other")
    recording.add_argument("names", nargs="+")
    recording.add_argument("--out", type=Path, metavar="DIR", required=True, help="into DIR/NAME")
    recording.add_argument("--fix", default="", help="with this fix, into DIR/NAME.FIX")
    recording.add_argument("--within", type=float, metavar="S", help="start none after so many seconds")
    several = commands.add_parser("parallel", help="time, record and pack the trainings of several parallelisms")
    several.add_argument("names", nargs="*")
    several.add_argument("--out", type=Path, metavar="DIR", required=True, help="DIR/packed has what to keep")
    several.add_argument("--rounds", type=int, default=5)
    several.add_argument("--processes", type=int, help="in place of one for each of the GPUs that scenario.json names")
    short = commands.add_parser("campaign", help="time and record many small programs in little time")
    short.add_argument("names", nargs="*")
    short.add_argument("--out", type=Path, metavar="DIR", required=True, help="results.jsonl, and recordings in pieces")
    short.add_argument("--seconds", type=float, default=3600.0, help="time within which it must end")
    short.add_argument("--each", type=float, default=1.5, help="seconds of a process's free stretch")
    short.add_argument("--rounds", type=int, default=2, help="0: only record them")
    short.add_argument("--gib", type=float, help="GPU memory to fill, in place of what there is")
    short.add_argument("--no-record", dest="record", action="store_false", help="only time them")
    short.add_argument("--fixed", metavar="FIX", default="", help="record them with the fix of this name, too")
    short.add_argument("--alone", action="store_true", help="load nothing while a process is timed or recorded")
    short.add_argument("--plan", action="store_true", help="only print what it would do, with an estimate of its time")
    kept = commands.add_parser("truth", help="write truth.json of each program that a campaign timed")
    kept.add_argument("results", type=Path, help="results.jsonl")
    args = parser.parse_args()
    if args.command == "campaign" and (args.rounds < (1 if not args.record else 0) or args.each <= 0):
        short.error("--rounds: one at least, or none where they are recorded; --each: more than none")
    if args.command == "parallel" and (args.rounds < 1 or (args.processes or 2) < 2):
        several.error("--rounds: one at least; --processes: two at least")
    if args.command == "measure":
        for wrong, why in (
            ((args.as_is or args.data) and not args.out,
             "--as-is and --data need --out DIR: truth.json is of the program itself and every fix"),
            (args.gib is not None and not args.gib > 0, "--gib: more than none"),
            (args.rounds < 1, "--rounds: one at least"),
            (args.record < 0, "--record: how many variants, none or more"),
            (args.record and not args.out, "--record needs --out DIR, where the recordings go"),
            (args.tries and not args.out, "--try needs --out DIR, where the trials go"),
        ):  # fmt: skip
            if wrong:
                timing.error(why)
    return args


def main() -> int:
    args = parsed()
    if args.command == "list":
        print("\n".join(listed()))
        return 0
    if args.command == "truth":
        print("\n".join(truths(args.results)))
        return 0
    try:
        chosen = [scenario(name) for name in named(args)]
        if args.command == "run":
            return subprocess.call(command(chosen[0], args))
        if args.command == "record":
            return record(chosen, args.out, args.fix, args.within)
    except KeyError as error:
        print(f"scenarios: {error.args[0]}", file=sys.stderr)
        return 2
    # By default these signals would end this process at once, and its children would continue. nohup ignores one of
    # them.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    if args.command == "campaign":
        options = {"gib": args.gib, "record": args.record, "fixed": args.fixed, "alone": args.alone}
        options |= {"plan": args.plan}
        return campaign(chosen, args.out, args.seconds, args.each, args.rounds, **options)
    if args.command == "parallel":
        return parallel(chosen, args.out, args.rounds, args.processes)
    return timed(chosen, args)


def timed(chosen: list[Scenario], args: argparse.Namespace) -> int:
    """Times scenarios, and with `--try` those of their fixes that gpuprof try has. Returns whether something failed."""
    changed = [replace(entry, fixes=() if args.as_is else entry.fixes, gib=args.gib or entry.gib) for entry in chosen]
    failed = measure(changed, args.rounds, args.out, args.record, args.data)
    if args.tries:
        from scenarios.trials import try_fixes

        failed |= try_fixes(chosen, args.rounds, args.out.resolve(), is_tiny())
    return failed


def named(args: argparse.Namespace) -> Sequence[str]:
    """Names of the scenarios that a command is for."""
    if args.command == "run":
        return [args.name]
    if args.command == "campaign":
        return args.names or campaign_names()
    return args.names or (PROGRAMS if args.command == "parallel" else names())


def command(entry: Scenario, args: argparse.Namespace) -> list[str]:
    """The command that runs a scenario. KeyError if it has no such fix."""
    options = list(entry.words)
    if args.fix is not None:
        fixes = [fix.name for fix in entry.fixes]
        if not fixes or args.fix not in (FIRST, *fixes):
            raise KeyError(f"{entry.name} has no fix {args.fix!r}; it has {', '.join(fixes) or 'none'}")
        options += ["--fix", fixes[0] if args.fix == FIRST else args.fix]
    if args.steps is not None:
        options += ["--steps", str(args.steps)]
    if args.timed:
        options += ["--timed"]
    under = [sys.executable, "-m", "gpuprof", "trace", *entry.trace] if args.trace else []
    return [*under, *launched(entry), *options]


def listed() -> list[str]:
    """Every scenario with what gpuprof must say about it, and its fixes with their measured steps."""
    lines = []
    for entry in scenarios():
        says = " or ".join(entry.says) + (f" ({entry.cause})" if entry.cause else "")
        lines.append(f"{entry.name:22} {entry.title}: {says}{measured(entry)}")
        lines += [f"{'':22}   --fix {fix.name:17} {fix.what}{measured(entry, fix.name)}" for fix in entry.fixes]
    return lines


def measured(entry: Scenario, fix: str = "") -> str:
    """The measured step as the end of a line; empty if it was not measured."""
    ms = entry.measured_ms(fix)
    return f"  {ms[0]:.0f}–{ms[1]:.0f} ms" if ms else ""


if __name__ == "__main__":
    sys.exit(main())
