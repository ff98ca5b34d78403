"""What sampling Python stacks costs a training: steps that are sampled, and steps that are not, in turns.

    python -m benchmarks.sampling [--rounds 40] [--json FILE]

Stretches of 60 steps of a small training, on the GPU where there is one, sampled every 2 ms and not, in turns (A B B A)
within one process: how much longer sampled ones take, with an 80 % interval by bootstrap. Exits with 1 where all of the
interval is above 2 %. On the clock that needs a core to spare; the CPU time of the thread that trains does not.
`python -m benchmarks.sampling_soak` samples a hostile program for an hour.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.in_turns import interval

PROGRAM = str(Path(__file__).with_name("sampled_loop.py"))
MOST, STEPS = 0.02, 60


def quotient(sampled: list[float], bare: list[float]) -> tuple[float, float, float]:
    """How much longer sampled stretches take, as a share: the median over rounds of two of each that follow one another
    (A B B A, so that a drift of the machine cancels), and its 10th and 90th percentile by bootstrap over the rounds."""
    ratios = [sum(sampled[i : i + 2]) / sum(bare[i : i + 2]) - 1 for i in range(0, len(bare) - 1, 2)]
    return interval(ratios)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write what was found, and the seconds of each stretch"
    )
    asked = parser.parse_args()
    done = subprocess.run([sys.executable, PROGRAM, str(asked.rounds)], check=True, stdout=subprocess.PIPE)
    times = json.loads(done.stdout)
    missed, found = False, {}
    for what, ending in (("on the clock", ""), ("of CPU time", "_cpu")):
        value, low, high = quotient(times[f"sampled{ending}"], times[f"bare{ending}"])
        print(f"sampled steps take {value:+.1%} ({low:+.1%} to {high:+.1%}) {what}, {asked.rounds} stretches each")
        found[what] = {"more": value, "low": low, "high": high}
        if not ending:
            missed = low > MOST
    print(f"a step takes {1e3 * statistics.median(times['bare']) / STEPS:.2f} ms unsampled")
    if asked.json:
        asked.json.write_text(json.dumps({**found, **times}) + "\n", encoding="utf-8")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
