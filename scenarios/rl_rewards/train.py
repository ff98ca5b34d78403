"""GRPO with TRL on a random model of 12 layers, 8 completions of 64 tokens an iteration, two rewards that wait.

Each of the two asks a judge behind an API, which takes 0.4 seconds: one after the other.
"""

from __future__ import annotations

from scenarios.support import rl
from scenarios.support.run import Run, main


def train(run: Run) -> None:
    job = rl.Job(shape=run.pick("0.1b", "tiny"), tokens=run.pick(64, 8), wait_s=run.pick(0.4, 0.01), steps=run.count)
    rl.train(run, rl.changed(job, {"coroutines": {"parallel": True}}.get(run.fix, {})))


if __name__ == "__main__":
    main(train)
