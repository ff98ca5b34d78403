"""GRPO with TRL on a random model of 24 layers, 8 completions of 64 tokens an iteration, rewards that take no time.

Eight sequences keep the GPU busy for a small part of a decode step: the CPU launches the kernels of 24 layers for it.
"""

from __future__ import annotations

from dataclasses import replace

from scenarios.support import rl
from scenarios.support.run import Run, main

JOB = rl.Job(shape="0.4b", tokens=64, wait_s=0.0, bfloat16=True)
FIXES = {
    "static_cache": {"static_cache": True},
    "half_length": {"tokens": 0.5},
    "twice_the_prompts": {"batch": 2},
}


def train(run: Run) -> None:
    job = run.pick(JOB, replace(JOB, shape="tiny", tokens=8, bfloat16=False))
    rl.train(run, rl.changed(replace(job, steps=run.count), FIXES.get(run.fix, {})))


if __name__ == "__main__":
    main(train)
