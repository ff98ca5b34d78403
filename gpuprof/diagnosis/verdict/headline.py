"""The headline of a diagnosis: what takes the largest share of the mean step, in words for someone who fine-tunes.

The verdict's key (`HOST-BOUND · launch`) says what would shorten the step most; the headline says what is observed:
what the GPU waits for, what happens in some steps only, or, if the GPU's own work sets the pace, what limits that
work."""

from __future__ import annotations

from gpuprof.diagnosis.findings import HEADLINES
from gpuprof.diagnosis.mean_step.timed_steps import PAUSES, VARIATION
from gpuprof.diagnosis.result.cpu_step import CpuStep, prepares_batches
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.sentences import listed, share
from gpuprof.diagnosis.verdict import step_parts
from gpuprof.diagnosis.verdict.rest_of_step import BY_CPU
from gpuprof.diagnosis.verdict.step_parts import Bar
from gpuprof.replay.bound import LEAST_SENSITIVITY, PARTS, RESOURCES, largest
from gpuprof.units import Assumed, Ratio, Share

CPU, STREAMS = "cpu", "streams"
_GROUP = {
    **dict.fromkeys(BY_CPU, CPU), "transfer": "copy", "copy": "copy", "communication": "communication",
}  # fmt: skip
"""Part of the step → the group in which the headline counts it; other parts are counted alone."""
_NO_HEADLINE = (VARIATION, "device", "unknown", "profiler", step_parts.IDLE)
"""Parts that name no cause, however large they are."""

_CPU = {
    "launch": "WAITING FOR THE CPU to launch kernels",
    "cpu_compute": "WAITING FOR THE CPU, which computes on tensors in host memory",
    "python": "WAITING FOR THE CPU, which runs Python code",
    "sync": "WAITING FOR THE CPU, which waited for the GPU first",
}
_BOTH = {
    "launch": "WAITING FOR THE CPU to launch kernels and run Python",
    "python": "WAITING FOR THE CPU to run Python and launch kernels",
}
"""If both take a share that is worth naming."""
_COMPUTES = {
    "optimizer": "WAITING FOR THE CPU to run the optimizer",
    "data": "WAITING FOR THE CPU to prepare the batch",
}
"""What the CPU computes on tensors in host memory, by phase."""
_SLOW = {
    "compile": "COMPILING",
    "planning": "PLANNING KERNELS FOR NEW SHAPES",
    "loading": "LOADING GPU CODE",
    "allocator": "ALLOCATING AND FREEING GPU MEMORY",
    "locking": "WAITING FOR A LOCK in the training process",
}
"""What single CPU calls of milliseconds do."""
_WORDS = {
    "input": "WAITING FOR BATCHES",
    "copy": "COPYING DATA to or from the GPU",
    "communication": "COMMUNICATION BETWEEN GPUS",
    "allocator": "ALLOCATING AND FREEING GPU MEMORY",
    "slow_call": "WAITING FOR THE CPU in single slow calls",
    STREAMS: "WAITING FOR OTHER STREAMS",
    "worker_starts": "STARTING INPUT WORKERS",
    "evaluation": "EVALUATION",
    "save": "SAVING CHECKPOINTS",
    "logging": "LOGGING",
    "garbage_collection": "PYTHON'S GARBAGE COLLECTION",
    "periodic": "SOMETHING PERIODIC (saving, evaluation, logging?)",
    "new_shapes": "PLANNING KERNELS FOR NEW SHAPES",
    "compile": "COMPILING",
    PAUSES: "PAUSES without a measured cause",
}
_LIMITS = {
    "compute": "arithmetic",
    "memory": "memory bandwidth",
    "latency": "kernels too short to fill the GPU",
}
_RESOURCES = {
    "host": "the CPU", "input": "the input", "transfer": "copies", "communication": "communication",
    "device": "the GPU's own work", "compute": "the GPU's arithmetic", "memory": "the GPU's memory bandwidth",
    "latency": "short kernels", "balanced": "several at once",
}  # fmt: skip
_OF_RESOURCE = {
    "host": (CPU, "slow_call"), "input": ("input",), "transfer": ("copy",), "communication": ("communication",),
}  # fmt: skip
ROLLOUT = {
    "generation": "GENERATING SAMPLES",
    "environment": "RUNNING THE ENVIRONMENT",
    "reward": "COMPUTING REWARDS",
    "log-probabilities": "COMPUTING LOG-PROBABILITIES",
    "advantage": "COMPUTING ADVANTAGES",
    "weight sync": "COPYING WEIGHTS to the generation engine",
    "data": "WAITING FOR BATCHES",
    "validation": "EVALUATION",
    "save": "SAVING CHECKPOINTS",
    "idle": "WAITING for no known reason",
    "other": "WORK BETWEEN THE PHASES",
}
"""Phase of an iteration that trains on its own generations → headline; phases not listed here are the training
itself."""

TAKING_TURNS_IDLE: Assumed[Share] = 1 / 3
"""If the GPUs of one process are idle for at least this share of the step on average, the headline says that they take
turns."""
MOSTLY_UNKNOWN: Assumed[Share] = 1 / 3
"""Smallest share of the step that is waiting for no known reason for that to be the headline of an unclear verdict."""
SECOND_REASON_SHARE: Assumed[Share] = 0.2
"""Smallest share of the waiting for the CPU at which a second reason is named with the first."""
LEAST_HEADLINE_SHARE: Assumed[Share] = 0.05
"""Parts of the step below this share are no headline: its causes are then unknown."""
REACHED_SHARE: Assumed[Share] = 0.85
"""Reach / usual step from which on nothing known is far slower than this GPU can be."""
LARGE_GAIN: Assumed[Ratio] = 1.1
"""A fix of the GPU's work with at least this expected gain shows that the GPU is not at its limit."""


def headline(diagnosis: Diagnosis) -> str:
    """`EVALUATION 43 %`, `WAITING FOR THE CPU to launch kernels and run Python 72 %`: the share is of the mean step."""
    return _without_verdict(diagnosis) or _iteration(diagnosis) or _of_step(diagnosis)[0]


def key_and_why(diagnosis: Diagnosis) -> str:
    """The key, with what it means if the headline names something else."""
    said, verdict = key(diagnosis), diagnosis.verdict
    if not said or diagnosis.iteration is not None or verdict.unclear or verdict.bound == "balanced":
        return said
    subject = _of_step(diagnosis)[1]
    if _agrees(diagnosis, subject):
        return said
    return f"{said}: {_RESOURCES[str(verdict.bound)]} twice as fast gains most"


def _agrees(diagnosis: Diagnosis, subject: str) -> bool:
    """Whether what the headline names is what the verdict does."""
    bound, cause = diagnosis.verdict.bound, diagnosis.verdict.cause
    if subject in ("", bound):
        return True
    if bound == "host":
        slow = subject == "slow_call" and cause in (*_SLOW, "slow_call")
        lump = {"new_shapes": "planning"}.get(subject, subject) == cause
        return (subject == CPU and cause in (None, *_CPU)) or slow or lump
    return subject in _OF_RESOURCE.get(bound or "", ()) or (subject == "worker_starts" and bound == "input")


def key(diagnosis: Diagnosis) -> str:
    """The verdict's key: `HOST-BOUND · launch`; empty without a verdict."""
    verdict = diagnosis.verdict
    if _without_verdict(diagnosis) or verdict.bound is None:
        return ""
    if verdict.unclear:
        return f"UNCLEAR: {' OR '.join(one.upper() for one in (verdict.bound, verdict.second) if one)}"
    text = _balanced(diagnosis) if verdict.bound == "balanced" else f"{verdict.bound.upper()}-BOUND"
    return f"{text} · {verdict.cause.replace('_', ' ')}" if verdict.cause else text


def limit_of_usual(diagnosis: Diagnosis) -> str:
    """What limits the usual step, where the verdict names what makes some steps longer; otherwise empty."""
    return "" if diagnosis.verdict.usual is None or diagnosis.verdict.unclear else _RESOURCES[diagnosis.verdict.usual]


def lacks_trace(diagnosis: Diagnosis) -> bool:
    """Whether it is a run without a trace, known only from its timed steps."""
    return any(issue.id == "no_trace" for issue in diagnosis.quality.issues)


def ran_on_cpu(diagnosis: Diagnosis) -> bool:
    """Whether it is a run that was recorded without problems and used no GPU."""
    issues = {issue.id for issue in diagnosis.quality.issues}
    return diagnosis.run is not None and not diagnosis.environment.gpus and "no_gpu_events" in issues


def _without_verdict(diagnosis: Diagnosis) -> str:
    if lacks_trace(diagnosis):
        return "NO TRACE"
    if ran_on_cpu(diagnosis) and diagnosis.verdict.bound is None and diagnosis.iteration is None:
        return "NO GPU"
    if diagnosis.quality.status == "unusable":
        return "UNUSABLE RECORDING"
    return "NO VERDICT" if diagnosis.verdict.bound is None and diagnosis.iteration is None else ""


def _iteration(diagnosis: Diagnosis) -> str:
    """For training on its own generations: the largest phase of the iteration, unless training itself takes longer."""
    found = diagnosis.iteration
    if found is None or found.mean_ns <= 0:
        return ""
    phases = [one for one in found.phases if one.phase in ROLLOUT]
    first = max(phases, key=lambda one: one.ns, default=None)
    if first is None or first.ns <= found.training_ns:
        return f"TRAINING {share(found.training_ns, found.mean_ns)} of the iteration"
    return f"{ROLLOUT[first.phase]} {share(first.ns, found.mean_ns)} of the iteration"


def _on_cpu(diagnosis: Diagnosis, step: CpuStep) -> str:
    """For training without a GPU: what takes longest."""
    shares = _excess_shares(diagnosis)
    words = {"input": "PREPARING BATCHES" if prepares_batches(diagnosis.run) else _WORDS["input"]}
    words |= {"own": "TRAINING on the CPU", "ops": "COMPUTING on the CPU", "python": "RUNNING PYTHON between the ops"}
    parts = {"input": float(step.input_ns), "own": float(step.own_ns), **shares}
    if step.ops_ns is not None:
        del parts["own"]
        parts |= {"ops": step.ops_ns, "python": step.own_ns - step.ops_ns}
    first = max(parts, key=lambda name: parts[name])
    return f"{words.get(first) or _WORDS.get(first, first.upper())} {share(parts[first], step.mean_ns)}"


def _excess_shares(diagnosis: Diagnosis) -> dict[str, float]:
    """Cause of excess time → ns of the mean step, without waiting for batches."""
    found = diagnosis.budget.excess if diagnosis.budget is not None else ()
    return {one.cause: float(one.mean_ns) for one in found if one.mean_ns and one.cause != "input"}


def _of_step(diagnosis: Diagnosis) -> tuple[str, str]:
    """(the headline, what it names: a part of the step or a bound; empty where that is what the verdict says)."""
    if diagnosis.cpu_step is not None:
        return _on_cpu(diagnosis, diagnosis.cpu_step), ""
    verdict, bars = diagnosis.verdict, [bar for bar in step_parts.bars(diagnosis) if bar.total_ns > 0]
    if verdict.bound is None:
        return "NO VERDICT", ""
    if verdict.second is not None:
        return f"UNCLEAR: {_RESOURCES[verdict.bound]} or {_RESOURCES[verdict.second]}", ""
    if not bars:
        return key(diagnosis), ""
    if not verdict.unclear:
        return _of_bars(diagnosis, bars)
    unknown = _not_known(_fullest(bars))
    if unknown >= MOSTLY_UNKNOWN:
        return f"UNCLEAR: WAITING for what was not recorded {share(unknown, 1)}", ""
    return f"UNCLEAR, most likely {_of_bars(diagnosis, bars)[0]}", ""


def _fullest(bars: list[Bar]) -> Bar:
    """The bar of the device that works most."""
    return max(bars, key=lambda one: one.busy_ns() / one.total_ns)


def _not_known(bar: Bar) -> float:
    """Share of the step that the device waits for no known reason."""
    return sum(part.ns for part in bar.parts if part.idle and part.key in ("unknown", step_parts.IDLE)) / bar.total_ns


def _of_bars(diagnosis: Diagnosis, bars: list[Bar]) -> tuple[str, str]:
    verdict, bar = diagnosis.verdict, _fullest(bars)
    shares = _shares(bar)
    first = max(shares, key=lambda name: shares[name], default="")
    most = shares.get(first, 0.0)
    idle = sum(one.idle_ns() / one.total_ns for one in bars) / len(bars)
    if verdict.turns > 1 and idle >= max(TAKING_TURNS_IDLE, most if first in step_parts.NEITHER else 0.0):
        return f"THE GPUS TAKE TURNS, idle {share(idle, 1)} on average", "turns"
    if verdict.cause == "straggler":
        return "WAITING FOR ONE SLOW RANK", ""
    busy = bar.busy_ns() / bar.total_ns
    on_gpu = verdict.bound in PARTS or (verdict.bound == "balanced" and _limits(diagnosis) == ["device"])
    if on_gpu and busy >= most:
        return _gpu(diagnosis, busy), ""
    if verdict.bound == "balanced" and not on_gpu:
        return _several(diagnosis, shares, bar), ""
    if most < LEAST_HEADLINE_SHARE:
        return _of_verdict(diagnosis), ""
    words = _words(diagnosis, bar, first)
    ns, of_finding = _of_finding(diagnosis)
    if ns > most * bar.total_ns and words not in (*_COMPUTES.values(), _CPU["cpu_compute"]):
        return f"{of_finding} {share(ns / bar.total_ns, 1)}", "finding"
    if verdict.usual == "device" and busy >= most:
        return f"GPU BUSY {share(busy, 1)}, {words} {share(most, 1)}", first
    return f"{words} {share(most, 1)}", first


def _of_finding(diagnosis: Diagnosis) -> tuple[int, str]:
    """(time of the first ledger item for which a finding declares a headline, ns; that headline); (0, "") without
    any."""
    items = diagnosis.above_reach.items if diagnosis.above_reach is not None else ()
    return next(((item.ns, HEADLINES[item.what]) for item in items if item.what in HEADLINES), (0, ""))


def _of_verdict(diagnosis: Diagnosis) -> str:
    """The headline by the verdict, if the causes of waiting are unknown."""
    bound, cause = diagnosis.verdict.bound, diagnosis.verdict.cause or ""
    if bound == "host":
        return _CPU.get(cause) or _SLOW.get(cause) or _WORDS.get(cause) or "WAITING FOR THE CPU"
    return (
        _WORDS["copy" if bound == "transfer" else bound]
        if bound in ("input", "transfer", "communication")
        else ("NO SINGLE LIMIT")
    )


def _shares(bar: Bar) -> dict[str, float]:
    """What the headline may name → its share of the step, without the GPU's own computation."""
    found: dict[str, float] = {}
    for part in bar.parts:
        name = STREAMS if part.on_streams else _GROUP.get(part.key, part.key)
        if part.key != "compute" and name not in _NO_HEADLINE:
            found[name] = found.get(name, 0.0) + part.ns / bar.total_ns
    return found


def _words(diagnosis: Diagnosis, bar: Bar, name: str) -> str:
    """What a part of the step is called in the headline."""
    if name == CPU:
        ns = {part.key: part.ns for part in bar.parts if part.key in _CPU}
        most = max(ns, key=lambda one: ns[one])
        if most == "cpu_compute":
            return _COMPUTES.get(diagnosis.verdict.computes or "", _CPU[most])
        both = all(ns.get(one, 0) >= SECOND_REASON_SHARE * sum(ns.values()) for one in _BOTH)
        return _BOTH[most] if both and most in _BOTH else _CPU[most]
    if name == "slow_call":
        return _SLOW.get(diagnosis.verdict.slow_calls or "", _WORDS[name])
    if name == "communication":
        waits = sum(part.ns for part in bar.parts if part.key == name and part.idle)
        works = sum(part.ns for part in bar.parts if part.key == name and not part.idle)
        if diagnosis.verdict.cause == "peer_wait" or waits > works:
            return "WAITING FOR OTHER RANKS"
    return _WORDS.get(name, name.replace("_", " ").upper())


def _gpu(diagnosis: Diagnosis, busy: float) -> str:
    """The headline if the GPU's own work sets the pace: what limits that work."""
    bound = diagnosis.verdict.bound
    if bound == "compute" and _at_limit(diagnosis):
        return f"COMPUTING AT THE GPU'S LIMIT {share(busy, 1)}"
    limits = _device_parts(diagnosis) if bound == "balanced" else [str(bound)]
    by = f", limited by {listed([_LIMITS[name] for name in limits])}" if limits else ""
    return f"GPU BUSY {share(busy, 1)}{by}"


def _at_limit(diagnosis: Diagnosis) -> bool:
    """Whether no known fix would make the GPU's own work much shorter."""
    found = diagnosis.above_reach
    if found is None or found.reach_ns < REACHED_SHARE * found.usual_ns:
        return False
    advised = (*diagnosis.findings, *diagnosis.worth_trying)
    return not any("device" in one.acts_on and one.speedup.expected >= LARGE_GAIN for one in advised)


def _several(diagnosis: Diagnosis, shares: dict[str, float], bar: Bar) -> str:
    """The headline if several resources limit the step equally: their shares."""
    busy = sum(part.ns for part in bar.parts if part.key == "compute") / bar.total_ns
    parts = {
        name: busy if name == "device" else sum(shares.get(one, 0.0) for one in _OF_RESOURCE[name])
        for name in _limits(diagnosis)
    }
    said = [
        f"{'computing' if name == 'device' else _RESOURCES[name]} {share(parts[name], 1)}"
        for name in sorted(parts, key=lambda name: -parts[name])
    ]
    return f"SEVERAL LIMITS: {listed(said)}" if len(said) > 1 else "NO SINGLE LIMIT"


def _limits(diagnosis: Diagnosis) -> list[str]:
    """The resources between which a step is balanced; none if no resource would gain noticeably."""
    found = diagnosis.sensitivities
    values = {} if found is None else {name: getattr(found, name) for name in RESOURCES}
    return list(largest(values)) if max(values.values(), default=0.0) >= LEAST_SENSITIVITY else []


def _device_parts(diagnosis: Diagnosis) -> list[str]:
    found = diagnosis.sensitivities
    parts = {} if found is None else {name: ns for name in PARTS if (ns := getattr(found, name)) is not None}
    return list(largest(parts)) if parts else []


def _balanced(diagnosis: Diagnosis) -> str:
    """The resources of a balanced step: `GPU-BOUND: compute and memory` if only the GPU limits it."""
    limits = _limits(diagnosis)
    if not limits:
        return "BALANCED"
    if limits != ["device"]:
        return f"BALANCED: {listed(['GPU' if name == 'device' else name for name in limits])}"
    parts = _device_parts(diagnosis)
    return f"GPU-BOUND: {listed(parts)}" if parts else "GPU-BOUND"
