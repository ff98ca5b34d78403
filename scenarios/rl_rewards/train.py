"""GRPO with TRL on a random model of 12 layers, 8 completions of 64 tokens an iteration, two rewards that wait.

Each of the two asks a judge behind an API, which takes 0.4 seconds: one after the other.
"""

from __future__ import annotations

from dataclasses import replace

from scenarios.support import rl
from scenarios.support.run import Run, main

JOB = rl.Job(shape="0.1b", tokens=64, wait_s=0.4, bfloat16=True)
FIXES = {"coroutines": {"parallel": True}}


def train(run: Run) -> None:
    job = run.pick(JOB, replace(JOB, shape="tiny", tokens=8, wait_s=0.01, bfloat16=False))
    rl.train(run, rl.changed(replace(job, steps=run.count), FIXES.get(run.fix, {})))


if __name__ == "__main__":
    main(train)
