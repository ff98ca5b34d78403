"""What `python -m benchmarks.rl_phases` measured of each change, next to what gpuprof predicts of it."""

from __future__ import annotations

import importlib
import json
import math
import statistics
from dataclasses import astuple, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.rl_parts import ARGUMENTS, BASELINES, CHANGES, FIXED, ROUNDS, SCENARIOS, SETTLE, TIMED
from gpuprof.record.base.quantiles import Z80
from gpuprof.record.phases.phase_names import BACKWARD, FORWARD, GENERATION, LOG_PROBABILITIES, OPTIMIZER
from gpuprof.value_range import Range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuprof.diagnosis.result.diagnosis import Diagnosis


CLOCKS = {
    GENERATION: (GENERATION,), LOG_PROBABILITIES: (LOG_PROBABILITIES,), "training": (FORWARD, BACKWARD),
    OPTIMIZER: (OPTIMIZER,),
}  # fmt: skip
"""Phase of the clocks → the phases that it consists of."""


def results(out: Path) -> list[dict[str, Any]]:
    """The lines of DIR/results.jsonl."""
    path = out / "results.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def measured(lines: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """Part → number of a turn → milliseconds of its mean iteration. A first turn is not counted where two more
    followed: processes that had just been built took up to 1.3 times as long in it, the baselines, too."""
    found: dict[str, dict[int, float]] = {}
    for line in lines:
        if line["kind"] == "change":
            found.setdefault(line["part"], {})[line["round"]] = line["ms"]
    return {
        name: {number: ms for number, ms in turns.items() if number or len(turns) < 3} for name, turns in found.items()
    }


@dataclass(frozen=True)
class Measured:
    """An iteration over that of the baselines, with half of its 80 % interval."""

    ratio: float
    sure: float


def ratios(turns: dict[str, dict[int, float]]) -> dict[str, Measured]:
    """Each part over the mean of BASELINES. What a round has in common (the machine is faster at some times) is taken
    out: a turn's logarithm is the part's, the round's and noise, whose spread over all parts gives the intervals."""
    logs = {name: {number: math.log(ms) for number, ms in each.items()} for name, each in turns.items()}
    rounds = {number for each in logs.values() for number in each}
    full = [each for each in logs.values() if len(each) > 1 and set(each) == rounds - {0}]
    common = {number: statistics.fmean(each[number] for each in full) for number in rounds - {0} if full}
    middle = statistics.fmean(common.values()) if common else 0.0
    plain = {
        name: {number: log - common.get(number, middle) + middle for number, log in each.items()}
        for name, each in logs.items()
    }
    means = {name: statistics.fmean(each.values()) for name, each in plain.items()}
    apart = [log - means[name] for name, each in plain.items() if len(each) > 1 for log in each.values()]
    free = len(apart) - sum(len(each) > 1 for each in plain.values()) - max(len(common) - 1, 0)
    spread = math.sqrt(sum(one**2 for one in apart) / free) if free > 0 else math.nan
    base = [means[name] for name in BASELINES if name in means]
    count = sum(len(plain[name]) for name in BASELINES if name in plain)
    if not base:
        return {}
    found = {name: math.exp(mean - statistics.fmean(base)) for name, mean in means.items()}
    return {
        name: Measured(ratio, Z80 * ratio * spread * math.sqrt(1 / len(plain[name]) + 1 / count))
        for name, ratio in found.items()
    }


def summary(out: Path) -> None:
    turns = measured(results(out))
    for name, each in turns.items():
        first = name.partition("-")[0] if name in FIXED else BASELINES[0]
        mean = statistics.mean(each.values())
        times = f"  {mean / statistics.mean(turns[first].values()):6.3f} of {first}" if first in turns else ""
        print(f"{name:30} {mean:8.1f} ms{times}  {[round(ms) for ms in each.values()]}", flush=True)


# -- predictions


def predicted(diagnosis: Diagnosis) -> dict[str, tuple[float, float, float]]:
    """Change → iteration over that of the recording: least, expected, most. What gpuprof advises by
    `gpuprof.diagnosis.iterations.changes`, other values of arguments by `gpuprof project --set`; one reward less by its
    time."""
    from gpuprof.calibration.iterations import SPREAD
    from gpuprof.diagnosis.iterations import changes as rules
    from gpuprof.diagnosis.iterations.recorded_shares import decode_busy_share
    from gpuprof.diagnosis.iterations.section import trainer_of
    from gpuprof.diagnosis.iterations.with_arguments import with_arguments

    found, folder = diagnosis.iteration, diagnosis.folder
    if found is None or found.generation is None or folder is None:
        return {}
    trainer, mean = trainer_of(folder), found.mean_ns
    own = {one.id: one.iteration_ns for make in rules._ALL for one in make(found, trainer)}
    names = {
        "rewards_at_once": "rewards_at_once", "static_cache": "cache_copies", "compiled_decode": "decode_cpu",
        "twice_the_generations": "rollout_batch", "no_reference": "reference_pass",
    }  # fmt: skip
    result = {name: own[id_] for name, id_ in names.items() if id_ in own}
    shares = {name: (one.low / mean, one.expected / mean, one.high / mean) for name, one in result.items()}
    own_busy, ended = decode_busy_share(found), found.generation.ended_share
    if own_busy is not None and ended is not None:  # what it costs, too, where it is not offered
        low, expected, high = rules.continuous_saved_ns(found.generation.decode_ns, own_busy, ended)
        shares["continuous_batching"] = (1 - high / mean, 1 - expected / mean, 1 - low / mean)

    slow = sorted(one.ns for one in found.rewards)[-2] if len(found.rewards) > 1 else 0
    low, expected, high = (slow * (1 + side * SPREAD.value) / mean for side in (-1, 0, 1))
    shares["one_slow_reward"] = 1 - high, 1 - expected, 1 - low
    for name, arguments in ARGUMENTS.items():
        then = with_arguments(found, trainer, arguments).iteration_ns
        shares[name] = then.low / mean, then.expected / mean, then.high / mean
    return shares


@dataclass(frozen=True)
class Held:
    """A change: what was predicted and what was measured, as shares of the iteration as it is."""

    name: str
    low: float
    expected: float
    high: float
    measured: Measured

    @property
    def holds(self) -> bool:
        """Whether the measured value is in the predicted interval, give or take its own 80 % interval."""
        return self.low - self.measured.sure <= self.measured.ratio <= self.high + self.measured.sure

    @property
    def has_middle(self) -> bool:
        """Whether the middle of what was measured is in the interval."""
        return self.low <= self.measured.ratio <= self.high


def foretold(out: Path) -> dict[str, tuple[float, float, float]]:
    """What an earlier recording predicted, from DIR/predicted.json."""
    path = out / "predicted.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: (low, expected, high) for name, (low, expected, high) in found.items()}


def held(out: Path, expected: Mapping[str, tuple[float, float, float]]) -> list[Held]:
    """The changes that were measured and that are expected to take (least, expected, most); per completion."""
    turns = {name: each for name, each in measured(results(out)).items() if name in CHANGES}
    ratio = ratios(turns)
    found = []
    for name in (one for one in CHANGES if one in expected and one in ratio):
        times = 2 if name == "twice_the_generations" else 1
        found.append(Held(name, *expected[name], Measured(ratio[name].ratio / times, ratio[name].sure / times)))
    return found


def predict(out: Path) -> int:
    """Writes DIR/predicted.json: change → least, expected and most of an iteration, over that of the recording."""
    import gpuprof

    found = predicted(gpuprof.diagnose(out / "grpo"))
    lines = [f" {json.dumps(name)}: {json.dumps([round(one, 4) for one in sides])}" for name, sides in found.items()]
    (out / "predicted.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(found)} changes of {out / 'grpo'}")
    return 0


def phase_ratios(lines: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Change → phase of the clocks → its time over that of the baselines, each the mean over turns but the first."""
    turns: dict[str, list[dict[str, float]]] = {}
    for line in lines:
        if line["kind"] == "change" and line["round"]:
            turns.setdefault(line["part"], []).append(line["phases_ms"])
    base = [each for name in BASELINES for each in turns.get(name, [])]
    return {
        name: {
            phase: statistics.fmean(one[phase] for one in each) / ms
            for phase in each[0] if (ms := statistics.fmean(one[phase] for one in base))
        }
        for name, each in turns.items() if name in CHANGES and base
    }  # fmt: skip


def phases_predicted(diagnosis: Diagnosis) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Change of arguments → phase of the clocks that it changes → least, expected and most of its time, over its time
    as it is."""
    from gpuprof.diagnosis.iterations.section import trainer_of
    from gpuprof.diagnosis.iterations.with_arguments import with_arguments

    found, folder = diagnosis.iteration, diagnosis.folder
    assert found is not None and folder is not None
    result: dict[str, dict[str, tuple[float, float, float]]] = {}
    for name, arguments in ARGUMENTS.items():
        then = {one.phase: one.then for one in with_arguments(found, trainer_of(folder), arguments).phases}
        result[name] = {}
        for clock, phases in CLOCKS.items():
            now = found.ns_of(*phases)
            new = [then.get(phase) or Range(*(found.ns_of(phase),) * 3) for phase in phases]
            low, expected, high = (sum(sides) / now for sides in zip(*map(astuple, new), strict=True))
            if (low, expected, high) != (1, 1, 1):
                result[name][clock] = low, expected, high
    return result


def compare(out: Path, recording: Path) -> int:
    """Prints a table for what was predicted before the measurement, one for what a recording predicts, and one for its
    phases."""
    import gpuprof

    diagnosis = gpuprof.diagnose(recording)
    before, now = held(out, foretold(out)), held(out, predicted(diagnosis))
    if not now:
        print("there is no baseline, or no recording of GRPO")
        return 1
    for title, found in (("predicted before", before), ("predicted from the recording", now)):
        if found:
            print(f"| change | {title} | interval | measured | overlap |", "|---|---:|---:|---:|---|", sep="\n")
        for one in found:
            print(f"| {one.name.replace('_', ' ')} | {one.expected:.2f} | {one.low:.2f}–{one.high:.2f} | "
                  f"{one.measured.ratio:.2f} ± {one.measured.sure:.2f} | {'yes' if one.holds else 'no'} |")  # fmt: skip
        if found:
            middle = sum(one.has_middle for one in found)
            print(f"\n{sum(one.holds for one in found)} of {len(found)} intervals overlap, {middle} have the middle\n")
    ratio = phase_ratios(results(out))
    print("| change | phase | predicted | interval | measured |", "|---|---|---:|---:|---:|", sep="\n")
    for name, phases in phases_predicted(diagnosis).items():
        for phase, (low, expected, high) in phases.items():
            if name in ratio:
                print(f"| {name.replace('_', ' ')} | {phase} | {expected:.2f} | {low:.2f}–{high:.2f} | "
                      f"{ratio[name][phase]:.2f} |")  # fmt: skip
    return 0


def truth(out: Path) -> int:
    """Writes truth.json of the scenarios that were timed, as `python -m scenarios measure` does."""
    lines = results(out)
    about = next((line for line in lines if line["kind"] == "where"), None)
    if about is None:
        print("where it ran is not known: the part as_it_is did not")
        return 1
    how = (
        f"Each process: an iteration while all are built, then, alone, {SETTLE} to settle and {TIMED} timed (free_ms:"
        " their mean; synchronised_ms: each of them; an iteration ends where its completions, which the CPU reads, have"
        " been trained on). Processes took turns; no profiler was in any of them."
    )
    head = {"how": how, "date": f"{datetime.now(timezone.utc):%Y-%m-%d}"}
    head |= {"machine": about["machine"], "versions": about["versions"]}
    for scenario in SCENARIOS:
        its = [part for part in FIXED if part.startswith(scenario)]
        timed = [line for line in lines if line["kind"] == "change" and line["part"] in its]
        each = {number: [line for line in timed if line["round"] == number] for number in range(ROUNDS)}
        timed = [line for turns in each.values() if len(turns) == len(its) for line in turns]  # of whole rounds
        processes = [
            {"fix": FIXED[line["part"]], "free_ms": line["ms"], "free_each_ms": line["each_ms"],
             "synchronised_ms": line["each_ms"], "tokens": None, "peak_mib": line["peak_mib"]}
            for line in timed
        ]  # fmt: skip
        if not timed:
            print(f"{scenario}: not all of it was timed")
            continue
        first = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
        body = ",\n".join(f"  {json.dumps(process)}" for process in processes)
        text = "\n".join(["{", *first, f' "processes": [\n{body}\n ]', "}", ""])
        (Path(importlib.import_module(f"scenarios.{scenario}").__path__[0]) / "truth.json").write_text(text)
        print(f"{scenario}: {len(processes)} turns")
    return 0
