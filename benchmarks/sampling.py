"""What sampling Python stacks costs a training, and that it does no harm: sampled and not in turns, and a long soak.

    python -m benchmarks.sampling [--rounds 40]
    python -m benchmarks.sampling --soak 60 [--python PYTHON …]

Cost: stretches of 60 steps of a small training on the CPU, sampled every 2 ms and not, in turns (A B B A) within one
process; the quotient of the medians, and its 80 % interval by bootstrap over the stretches. Exits with 1 above 2 %.
On the clock that needs a core to spare; the CPU time of the thread that trains does not.

Soak: a program that calls, returns, raises and compiles functions as quickly as it can is sampled for MINUTES,
in each Python in turn; exits with 1 if one of them crashes, or if more than 2 % of the samples could not be read.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from pathlib import Path

PROGRAM = str(Path(__file__).with_name("sampled_loop.py"))
MOST, MOST_UNREAD = 0.02, 0.02


def quotient(sampled: list[float], bare: list[float]) -> tuple[float, float, float]:
    """Median of `sampled` over that of `bare`, less 1: value, and the 10th and 90th percentile by bootstrap."""
    chance = random.Random(0)
    draws = sorted(
        statistics.median(chance.choices(sampled, k=len(sampled)))
        / statistics.median(chance.choices(bare, k=len(bare)))
        for _ in range(2000)
    )
    return statistics.median(sampled) / statistics.median(bare) - 1, draws[200] - 1, draws[1800] - 1


def _median_of_draw(chance: random.Random, values: list[float]) -> float:
    return statistics.median(chance.choices(values, k=len(values)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    parser.add_argument("--python", action="append", help="a Python to soak (default: this one)")
    asked = parser.parse_args()
    if asked.soak is None:
        done = subprocess.run([sys.executable, PROGRAM, "cost", str(asked.rounds)], check=True, stdout=subprocess.PIPE)
        times = json.loads(done.stdout)
        missed = False
        for what, ending in (("on the clock", ""), ("of CPU time", "_cpu")):
            value, low, high = quotient(times[f"sampled{ending}"], times[f"bare{ending}"])
            print(f"sampled steps take {value:+.1%} ({low:+.1%} to {high:+.1%}) {what}, {asked.rounds} stretches each")
            if not ending:
                missed = value > MOST
        return int(missed)
    failed = 0
    for python in asked.python or [sys.executable]:
        done = subprocess.run(
            [python, PROGRAM, "soak", str(round(asked.soak * 60))], check=False, stdout=subprocess.PIPE
        )
        found = json.loads(done.stdout) if done.returncode == 0 else None
        print(f"{python}: exit {done.returncode} {found or ''}", flush=True)
        failed |= found is None or found["unread"] > MOST_UNREAD * (found["samples"] + found["unread"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
