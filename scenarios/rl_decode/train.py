"""GRPO with TRL on a random model of 24 layers, 8 completions of 256 tokens an iteration, rewards that take no time.

Eight sequences keep the GPU busy for a small part of a decode step: the CPU launches the kernels of 24 layers for it.
"""

from __future__ import annotations

from scenarios.support import rl
from scenarios.support.run import Run, main

FIXES = {
    "static_cache": {"static_cache": True},
    "half_length": {"tokens": 0.5},
    "twice_the_prompts": {"batch": 2},
}


def train(run: Run) -> None:
    job = rl.Job(shape=run.pick("0.4b", "tiny"), tokens=run.pick(256, 8), wait_s=0.0, steps=run.count)
    rl.train(run, rl.changed(job, FIXES.get(run.fix, {})))


if __name__ == "__main__":
    main(train)
