"""How often `gpuprof attach --watch` sees a change of the step time where there is none, and how soon a real one.

    python -m benchmarks.watch [--steps N] [--json FILE]

Recorded steps: the unprofiled steps of every recording and of every process of the scenarios' truths,
each repeated end to end, and each resampled in blocks of 32 (circular block bootstrap), to N steps: an alarm is false.
Simulated noise: tails, periods and correlation, from a fixed seed. Changes: levels and drifts put onto resampled steps.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gpuprof.attach.changes import (
    BLOCK_STEPS,
    RECENT_BLOCKS,
    REFERENCE_BLOCKS,
    SETTLING_STEPS,
    StepTimeChange,
    Watch,
    advance,
)

ROOT = Path(__file__).resolve().parent.parent
LEAST = 24
"""Steps of a recorded series that is resampled."""
RESAMPLED = 32
"""Steps in a row that are drawn together."""
NEEDED = SETTLING_STEPS + BLOCK_STEPS * (REFERENCE_BLOCKS + RECENT_BLOCKS)
UNPROFILED = ("baseline_free", "sampling", "after")


@dataclass(frozen=True, slots=True)
class Found:
    """One kind of series."""

    name: str
    series: int
    steps: int
    """Steps after the reference was known, at which an alarm was possible."""
    alarms: int
    new: int
    """Alarms that would have opened a window."""


def alarms(step_ns: Sequence[float]) -> list[tuple[int, StepTimeChange]]:
    """(step, change) for each that is seen in a series."""
    watch, found = Watch(), []
    for i, ns in enumerate(step_ns):
        watch, change = advance(watch, ns)
        if change is not None:
            found.append((i, change))
    return found


def recorded(folders: Sequence[Path]) -> Iterator[tuple[str, list[float]]]:
    """(where from, ns of unprofiled steps in a row) of recordings and of processes of truths, below some folders."""
    for folder in folders:
        for path in sorted(folder.rglob("steps.jsonl")):
            series: dict[tuple[int, str], list[float]] = {}
            for line in path.read_text(encoding="utf-8").splitlines():
                step = json.loads(line)
                if step.get("stage") in UNPROFILED and step.get("ns"):
                    series.setdefault((step["rank"], step["stage"]), []).append(step["ns"])
            yield from ((f"{path.parent.parent.name} {key[1]}", each) for key, each in series.items())
        for path in sorted(folder.rglob("truth.json")):
            document = json.loads(path.read_text(encoding="utf-8"))
            for one in document.get("processes", ()) if isinstance(document, dict) else ():
                each = one.get("free_each_ms")
                if each:
                    yield f"{path.parent.name} truth", [ms * 1e6 for ms in each]


def resampled(each: Sequence[float], count: int, chance: random.Random) -> list[float]:
    """`count` steps, drawn from a series in blocks of neighbours; the series is closed to a ring."""
    length = min(RESAMPLED, max(len(each) // 3, 1))
    found: list[float] = []
    while len(found) < count:
        begin = chance.randrange(len(each))
        found += [each[(begin + i) % len(each)] for i in range(length)]
    return found[:count]


def repeated(each: Sequence[float], count: int) -> list[float]:
    """`count` steps of a series again and again: what its neighbours have in common, however far apart, is kept."""
    return [each[i % len(each)] for i in range(count)]


def simulated(count: int, chance: random.Random) -> dict[str, list[float]]:
    """Noise without a change, by name; the usual step is 100 ms."""
    correlated, value = [], 0.0
    for _ in range(count):
        value = 0.95 * value + chance.gauss(0, 0.05)
        correlated.append(1e8 * 2.718281828**value)
    normal = [1e8 * chance.lognormvariate(0, 0.03) for _ in range(count)]
    return {
        "log-normal, 3 %": normal,
        "log-normal, 50 %": [1e8 * chance.lognormvariate(0, 0.5) for _ in range(count)],
        "Pareto tail (index 1.1)": [1e8 * chance.paretovariate(1.1) for _ in range(count)],
        "one step in 20 takes 1 to 100 times as long": [
            one * (1 if chance.random() > 0.05 else 100 ** chance.random()) for one in normal
        ],
        "every 4th step waits 5 times": [one * (5 if i % 4 == 0 else 1) for i, one in enumerate(normal)],
        "every 50th step saves for 30 times": [one * (30 if i % 50 == 0 else 1) for i, one in enumerate(normal)],
        "an evaluation of 20 slow steps after every 500": [
            one * (3 if i % 500 < 20 else 1) for i, one in enumerate(normal)
        ],
        "correlated (0.95 from step to step, 16 %)": correlated,
        "two lengths of batches, at random": [one * chance.choice((1, 2.2)) for one in normal],
    }


CHANGES: dict[str, Callable[[int], float]] = {
    "level +15 %": lambda i: 1.15 if i >= 0 else 1.0,
    "level +30 %": lambda i: 1.3 if i >= 0 else 1.0,
    "level +100 %": lambda i: 2.0 if i >= 0 else 1.0,
    "level -25 %": lambda i: 0.75 if i >= 0 else 1.0,
    "drift +1 % in 20 steps": lambda i: 1 + max(i, 0) * 0.0005,
    "drift +1 % in 100 steps": lambda i: 1 + max(i, 0) * 0.0001,
}
"""Factor on the step time, by steps since the change began."""
BEGINS = 1000


def false_alarms(name: str, many: Sequence[Sequence[float]]) -> Found:
    """False alarms in series in which nothing changes."""
    seen = [change for each in many for _, change in alarms(each)]
    steps = sum(max(0, len(each) - NEEDED + 1) for each in many)
    return Found(name, len(many), steps, len(seen), sum(one.is_new for one in seen))


def detection(many: Sequence[Sequence[float]]) -> list[dict[str, object]]:
    """For changes applied to series: how many are detected, after how many steps, as what, and how many windows they
    open."""
    found = []
    for name, factor in CHANGES.items():
        changed = [alarms([ns * factor(i - BEGINS) for i, ns in enumerate(each)]) for each in many]
        first = [next(((i, c) for i, c in one if i >= BEGINS), None) for one in changed]
        seen = [pair for pair in first if pair is not None]
        found.append(
            {
                "change": name,
                "series": len(many),
                "seen": len(seen),
                "steps": statistics.median(i - BEGINS for i, _ in seen) if seen else None,
                "as": {kind: sum(c.kind == kind for _, c in seen) for kind in ("level", "drift")},
                "windows": sum(c.is_new for one in changed for _, c in one) / len(many),
            }
        )
    return found


def main() -> int:
    """The command line; 1 if there is more than one false alarm in 10,000 recorded steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT / "scenarios"], help="where recordings are")
    parser.add_argument("--steps", type=int, default=10_000, help="length of each resampled or simulated series")
    parser.add_argument("--seeds", type=int, default=10, help="series of each kind of simulated noise")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    chance = random.Random(1)
    series = [(name, each) for name, each in recorded(options.folders) if len(each) >= LEAST]
    drawn = [resampled(each, options.steps, chance) for _, each in series]
    noise = [simulated(options.steps, random.Random(seed)) for seed in range(options.seeds)]
    found = [
        false_alarms("recorded, repeated", [repeated(each, options.steps) for _, each in series]),
        false_alarms("recorded, resampled", drawn),
        *(false_alarms(name, [one[name] for one in noise]) for name in noise[0]),
    ]
    print(f"{'nothing changes':48} series      steps  alarms  windows  per 10,000 steps")
    for one in found:
        rate = 1e4 * one.alarms / one.steps if one.steps else 0.0
        print(f"{one.name:48} {one.series:6} {one.steps:10,} {one.alarms:7} {one.new:8} {rate:10.3f}")
    worst = sorted(zip(drawn, series, strict=True), key=lambda pair: -len(alarms(pair[0])))[:5]
    for each, (name, short) in worst:
        print(f"   most alarms: {name} ({len(short)} recorded steps): {len(alarms(each))}")
    seen = detection([each[: BEGINS + 4000] for each in drawn])
    print(f"\n{'a change begins after 1,000 steps':40} series   seen  steps until then  as level / drift  windows")
    for one in seen:
        kinds = one["as"]
        assert isinstance(kinds, dict)
        print(
            f"{one['change']:40} {one['series']:6} {one['seen']:6} {one['steps']!s:>17} {kinds['level']:9} / "
            f"{kinds['drift']:<6} {one['windows']:6.2f}"
        )
    if options.json:
        document = {"false": [asdict(one) for one in found], "changes": seen}
        options.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return 1 if any(one.alarms * 10_000 > one.steps for one in found[:2]) else 0


if __name__ == "__main__":
    sys.exit(main())
