"""A training whose hooks of gpuprof are switched off and on again between its steps; see benchmarks/in_turns.py.

    PYTHONPATH=. python benchmarks/switched_loop.py tiny|lora [--layers 20]        # also after `gpuprof trace …`

Its first line says who it is: {"pid": …, "torch": …, "device": …}. For every line `STATE COUNT` that it reads it runs
this many steps and answers with their durations in nanoseconds, a JSON list on a line. States: `off`, without the hooks
of gpuprof that are there; `on`, with them; `sampled`, with them and with its stacks sampled. `both COUNT` runs
COUNT steps in each of the first two states, a few at a time, and answers with both. `fit MS…` answers, for each MS,
with the number of layers with which a step takes about MS milliseconds; `state` answers with the recording's stage.
It is run as a file, so that nothing but torch is imported.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import timed_loop

FIT = (4, 16)
"""Layers whose steps are timed to find how long one takes."""
FIT_STEPS = 40
EACH, DROPPED = 8, 2
"""Steps of `both` in one state that count, and those before them that do not, as the hooks were just switched."""
PATIENCE_S = 20.0


class Switch:
    """gpuprof's hooks of this process: wrapped attributes, and entries of hooks' dictionaries and lists."""

    def __init__(self) -> None:
        self._hooks: list[tuple[Callable[[], Any], Callable[[], Any]]] | None = None
        """(remove, put back) for each hook; some come and go by themselves."""
        self._is_on = True

    def turn(self, on: bool) -> None:
        """Removes all hooks that exist when this is first called, or puts them back."""
        if on == self._is_on:
            return
        if self._hooks is None:
            self._hooks = [*_patches(), *_module_hooks(), *_collections()]
        for away, back in self._hooks:
            (back if on else away)()
        self._is_on = on


Hooks = Iterator[tuple[Callable[[], Any], Callable[[], Any]]]


def _patches() -> Hooks:
    def back(patch: Any) -> None:
        if patch.current is not None:
            setattr(patch._owner, patch._name, patch.current)

    for patch in [one for one in gc.get_objects() if _is_ours(one, "WrappedAttribute")]:
        if patch.current is None or patch.is_there:
            yield patch.undo, lambda patch=patch: back(patch)


def _module_hooks() -> Hooks:
    module = sys.modules["torch.optim.optimizer"]
    found = [module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks]
    modules = [one for one in gc.get_objects() if isinstance(one, torch.nn.Module)]
    inside = {id(child) for one in modules for child in one.children()}
    for one in modules:
        if id(one) not in inside:
            found += [one._forward_pre_hooks, one._forward_hooks]
    for one in found:
        kept: dict[Any, Any] = {}

        def away(one: Any = one, kept: dict[Any, Any] = kept) -> None:
            kept.clear()
            kept.update(one)
            one.clear()

        yield away, lambda one=one, kept=kept: one.update(kept)


def _collections() -> Hooks:
    for one in [one for one in gc.callbacks if ".record." in getattr(one, "__module__", "")]:
        yield lambda one=one: gc.callbacks.remove(one), lambda one=one: gc.callbacks.append(one)


def _is_ours(one: Any, name: str) -> bool:
    return type(one).__name__ == name and ".record." in type(one).__module__


def recorder_module(name: str) -> Any:
    """A module of gpuprof's recording, as `gpuprof trace` has imported it; None where it has not."""
    return sys.modules.get(f"_gpuprof.record.{name}")


def session() -> Any:
    """gpuprof's session of this process; None where there is none."""
    module = recorder_module("entry.attach")
    return None if module is None else module.holder.current()


def state() -> dict[str, Any]:
    """What gpuprof does in this process: the stage, and whether the recording is over."""
    here = session()
    armed = recorder_module("entry.armed")
    counts = armed is not None and armed.holder.counter is not None
    return {"counts": counts} if here is None else {"over": here.is_over, **here.progress()}


class Loop:
    """The training."""

    def __init__(self, name: str, layers: int) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._steps = timed_loop.steps(name, self.device, layers)
        self._switch = Switch()

    def run(self, how: str, count: int) -> list[int]:
        """Nanoseconds of each of `count` steps in a state."""
        self._switch.turn(how != "off")
        if how == "sampled":
            return self._sampled(count)
        return [next(self._steps) for _ in range(count)]

    def both(self, count: int) -> dict[str, list[int]]:
        """Nanoseconds of `count` steps without the hooks and with them, about, a few at a time: off, on, on, off …"""
        found: dict[str, list[int]] = {"off": [], "on": []}
        each = min(count, EACH)
        for i in range(2 * max(count // each, 1)):
            how = ("off", "on", "on", "off")[i % 4]
            found[how] += self.run(how, each + DROPPED)[DROPPED:]
        return found

    def _sampled(self, count: int) -> list[int]:
        """As in the stage that samples: the session marks the parts of its steps, and their ends."""
        here = session()
        with tempfile.TemporaryDirectory() as folder:
            sampling = recorder_module("stacks.sampling").Sampling(Path(folder), 0, 0.001)
            next(self._steps)
            sampling.begin(1, extends=True)
            here._end_tape()
            stage, here._stage, here._sampling = here._stage, "sampling", sampling
            found = [next(self._steps) for _ in range(count)]
            here._end_tape()
            here._stage, here._sampling = stage, None
            sampling.end(1)
            until = time.monotonic() + PATIENCE_S
            while not list(Path(folder).glob("samples*.json")):  # the other process still works
                if time.monotonic() > until:
                    raise TimeoutError("the sampler has written nothing")
                time.sleep(0.01)
        return found


def fit(milliseconds: list[float], device: torch.device) -> list[int]:
    """Layers of `lora` with which a step takes about so long: a straight line through the times of FIT."""
    each = []
    for layers in FIT:
        steps = timed_loop.steps("lora", device, layers)
        each.append(statistics.median([next(steps) for _ in range(FIT_STEPS)][FIT_STEPS // 4 :]) / 1e6)
    slope = max((each[1] - each[0]) / (FIT[1] - FIT[0]), 1e-3)
    return [max(round(FIT[0] + (ms - each[0]) / slope), 1) for ms in milliseconds]


def answers(loop: Loop) -> Iterator[Any]:
    """One for each line of stdin."""
    for line in sys.stdin:
        how, *words = line.split()
        if how == "state":
            yield state()
        elif how == "fit":
            yield fit([float(word) for word in words], loop.device)
        else:
            try:
                yield loop.both(int(words[0])) if how == "both" else loop.run(how, int(words[0]))
            except Exception as error:  # a system that lets no stacks be read, say: the other states are measured
                yield {"error": repr(error)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=sorted(timed_loop.SHAPES))
    parser.add_argument("--layers", type=int, default=timed_loop.LAYERS)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loop = Loop(options.name, options.layers)
    name = torch.cuda.get_device_name() if loop.device.type == "cuda" else "CPU"
    print(json.dumps({"pid": os.getpid(), "torch": torch.__version__, "device": name}), flush=True)
    for answer in answers(loop):
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
