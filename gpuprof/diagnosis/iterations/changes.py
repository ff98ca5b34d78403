"""What would shorten an iteration, computed from its budget by phase; advice in the trainer's own arguments.

Each function is pure and yields a change, or nothing. A change that gains less than `LEAST_GAIN` of
the calibration, or whose argument the trainer does not have, is not offered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from gpuprof.calibration import inference
from gpuprof.calibration import iterations as calibrated
from gpuprof.diagnosis.iterations.change import change
from gpuprof.diagnosis.iterations.recorded_shares import busy_share, decode_busy_share
from gpuprof.diagnosis.iterations.trainer import Trainer
from gpuprof.diagnosis.iterations.with_arguments import Factors, iteration_with
from gpuprof.diagnosis.result.fix import assigned, joined
from gpuprof.diagnosis.result.iteration_model import Iteration, IterationChange
from gpuprof.record.phases.phase_names import (
    BACKWARD,
    ENVIRONMENT,
    FORWARD,
    GENERATION,
    LOG_PROBABILITIES,
    REWARD,
    WEIGHT_SYNC,
)
from gpuprof.units import Assumed, Ratio, Share

CONTINUOUS_NS = tuple(1e9 * seconds for seconds in calibrated.CONTINUOUS_S.falling)
"""Cost of a step and of a call of continuous batching, the highest first."""
SHORTER_TAIL: Assumed[Share] = 0.9
"""There is a tail to cut if the 95th percentile of completion lengths is below this share of the longest."""
RUN_AT_ONCE: Assumed[Ratio] = 1.05
"""Reward functions whose times sum to more than this multiple of their phase run at the same time already."""
COMPUTES: Assumed[Share] = 0.7
"""Smallest share of a reward function's time in which its thread uses the CPU, for a function that computes."""
MOST_BUSY_OF_FUNCTIONS: Assumed[Share] = 0.1
"""Share of the rewards' time in which a GPU works, above which a model scores."""
PROCESSES_SAVED: Assumed[tuple[Share, Share]] = (0.3, 0.85)
"""Share of the time of functions that compute that processes save: smallest; expected, of all but one process's part.
Texts are copied to the processes, and the longest completion may take most of the time."""
LEAST_OVERLAPPED: Assumed[Share] = 0.5
"""Smallest share that is saved of the shorter of two sides that could overlap."""
DECODE_CPU_SAVED: Assumed[tuple[Share, Share]] = (0.3, 0.7)
"""Share of the decode steps' idle GPU time that a static cache saves: smallest, expected."""
LEAST_BUSY_OF_CACHE: Assumed[Share] = 0.5
"""Share of the decode steps in which the GPU works, below which a static cache makes them longer."""
LEAST_REFERENCE_SAVED: Assumed[Share] = 0.8
"""Smallest share of a pass that is saved without a reference policy."""
ONE_PASS_SAVED: Assumed[Share] = 0.7
"""Expected share of the idle GPU time of other passes that one pass saves."""
PADDING_SAVED: Assumed[tuple[Share, Share]] = (0.2, 0.7)
"""Share of the GPU time for padding that micro-batches by tokens save: smallest, expected."""
MOST_IN_ADAPTERS: Assumed[Share] = 0.5
"""Trainable share of the weights below which these are adapters, which can be sent alone."""


def changes(iteration: Iteration, trainer: Trainer, on_gpu: bool = True) -> tuple[IterationChange, ...]:
    """What would shorten the iteration, the largest gain first. on_gpu: whether the training ran on a GPU; one without
    is not sent to another."""
    ways = [make for make in _ALL if on_gpu or make not in _ON_GPU]
    found = [one for make in ways for one in make(iteration, trainer)]
    worth = [one for one in found if one.iteration_ns.expected <= (1 - calibrated.LEAST_GAIN.value) * iteration.mean_ns]
    return tuple(sorted(worth, key=lambda one: -one.speedup))


def _tail(iteration: Iteration, trainer: Trainer) -> Iterator[IterationChange]:
    """Completions cut at their 95th percentile: the loop decodes until the last one ends."""
    found, argument = iteration.generation, trainer.first("max_completion_length", "max_new_tokens")
    if found is None or argument is None or not found.p95 or not found.longest or not found.decode_ns:
        return
    if found.p95 > SHORTER_TAIL * found.longest:
        return
    saved = found.decode_ns * (1 - found.p95 / found.longest)
    length = math.ceil(found.p95)
    yield change(
        iteration.mean_ns, "completion_tail", trainer.set(argument, length),
        (saved * (1 - calibrated.SPREAD.value), saved, saved * (1 + calibrated.SPREAD.value)),
        f"generation decodes {found.longest:.0f} tokens until the longest completion ends; 95 % of them are not longer"
        f" than {length}",
        f"completions longer than {length} tokens are cut",
    )  # fmt: skip


def _rewards_at_once(iteration: Iteration, trainer: Trainer) -> Iterator[IterationChange]:
    """Run reward functions that mostly wait at the same time instead of one after another."""
    whole = iteration.ns_of(REWARD)
    waiting = [one for one in iteration.rewards if one.waits and one.ns >= calibrated.LEAST_GAIN.value * whole]
    if len(waiting) < 2 or sum(one.ns for one in iteration.rewards) > RUN_AT_ONCE * whole:
        return
    saved = sum(one.ns for one in waiting) - max(one.ns for one in waiting)
    names = ", ".join(one.name for one in waiting[:3])
    fix = f"make {names} coroutines (async def): TRL awaits those together"
    if not trainer.awaits_rewards:
        fix = f"call {names} from one reward function, each in a thread (concurrent.futures.ThreadPoolExecutor)"
    yield change(
        iteration.mean_ns, "rewards_at_once",
        fix, (saved * (1 - calibrated.SPREAD.value), saved, float(saved)),
        "they run one after another and wait for most of their time; together they take as long as the slowest", None,
    )  # fmt: skip


def _rewards_in_processes(iteration: Iteration, trainer: Trainer) -> Iterator[IterationChange]:
    """Score completions in several processes, where reward functions compute in Python."""
    computing = [one for one in iteration.rewards if one.cpu_ns is not None and one.cpu_ns >= COMPUTES * one.ns]
    took, busy = min(sum(one.ns for one in computing), iteration.ns_of(REWARD)), busy_share(iteration, REWARD)
    if not took or (busy or 0.0) > MOST_BUSY_OF_FUNCTIONS or iteration.generation is None:
        return  # a reward model launches kernels
    processes = min(trainer.cpus or calibrated.REWARD_PROCESSES.value, iteration.generation.sequences)
    if processes < 2:
        return
    names = ", ".join(one.name for one in sorted(computing, key=lambda one: -one.ns)[:3])
    yield change(
        iteration.mean_ns, "rewards_in_processes",
        f"score completions in {names} with concurrent.futures.ProcessPoolExecutor().map, made once",
        (PROCESSES_SAVED[0] * took, PROCESSES_SAVED[1] * took * (1 - 1 / processes), took * (1 - 1 / processes)),
        f"they compute in Python, one completion after another: {took / 1e9:.2f} s of an iteration on one of"
        f" {processes:.0f} cores that could share it",
        None,
    )  # fmt: skip


def _one_ahead(iteration: Iteration, trainer: Trainer) -> Iterator[IterationChange]:
    """Generate the next iteration while this one trains."""
    ahead = iteration.ns_of(GENERATION, ENVIRONMENT, REWARD)
    rest = iteration.mean_ns - ahead
    if not ahead or not rest:
        return
    saved = min(ahead, rest)
    yield change(
        iteration.mean_ns, "generation_ahead",
        trainer.asynchronous_twin,
        (LEAST_OVERLAPPED * saved, float(saved - iteration.ns_of(WEIGHT_SYNC)), float(saved)),
        "generation, environment and rewards overlap with the rest; the weights' copy to the generator is not measured"
        if not iteration.ns_of(WEIGHT_SYNC) else "generation, environment and rewards overlap with the rest",
        "completions come from the policy of one iteration before",
    )  # fmt: skip


def _decode_without_cpu(iteration: Iteration, trainer: Trainer) -> Iterator[IterationChange]:
    """Decode as fast as the GPU can: transformers compiles the decode step over a static cache."""
    found, busy = iteration.generation, decode_busy_share(iteration)
    argument = trainer.first("cache_implementation", "generation_kwargs")
    if found is None or busy is None or argument is None or not found.decode_ns:
        return
    if trainer.settings.get("cache_implementation") == "static":
        return
    most = found.decode_ns * (1 - busy)
    value = "static" if argument == "cache_implementation" else {"cache_implementation": "static"}
    fix, condition = trainer.static_cache(argument, value)
    if trainer.forbids_compiling:
        # Applied by hand: the arguments alone compile nothing.
        allowed = assigned("trainer.generation_config.disable_compile", False)
        fix = replace(joined([fix, allowed]), patch=None)
    yield change(
        iteration.mean_ns, "decode_cpu", fix,
        (DECODE_CPU_SAVED[0] * most, DECODE_CPU_SAVED[1] * most, most),
        f"the GPU works {100 * busy:.0f} % of the recorded decode steps; at best decoding takes only that time (how"
        " close it gets is assumed)",
        condition,
    )  # fmt: skip


def _cache_copies(iteration: Iteration, trainer: Trainer) -> Iterator[IterationChange]:
    """A static cache without compiling: the cache is not copied for each token.

    Not if the GPU waits for the CPU: then a step over a static cache, with its mask and indexed writes, takes longer
    (an iteration of 12 layers 1.08 times, of 24 layers 1.19 times; H100, transformers 5.17)."""
    copies, busy = iteration.cache_copies, decode_busy_share(iteration)
    argument = trainer.first("generation_kwargs")
    if copies is None or argument is None or trainer.settings.get("cache_implementation") == "static":
        return
    if busy is not None and busy < LEAST_BUSY_OF_CACHE:
        return
    spent = copies.cpu_ns if busy is None else copies.gpu_ns
    low, expected, high = (spent * (1 - left) for left in inference.CACHE_LEFT.falling)
    fix, condition = trainer.static_cache(argument, {"cache_implementation": "static"})
    yield change(
        iteration.mean_ns, "cache_copies", fix, (low, expected, high),
        f"{copies.count:,} concatenations per iteration copy the cache, extrapolated from the recorded decode steps;"
        " compiling the decode step over it is a separate change (decode_cpu)",
        condition,
    )  # fmt: skip


def _serving_engine(iteration: Iteration, trainer: Trainer) -> Iterator[IterationChange]:
    """Generate with a serving engine; estimated from published throughput, not from this run."""
    found, busy = iteration.generation, decode_busy_share(iteration)
    if found is None or busy is None or not found.decode_ns or trainer.settings.get("use_vllm") is True:
        return
    if trainer.first("use_vllm") is None:
        return
    # It decodes no faster than the GPU works now, minus the time for ended sequences.
    least = found.decode_ns * busy * (1 - (found.ended_share or 0.0))
    saved = [found.decode_ns - max(found.decode_ns / times, least) for times in calibrated.ENGINE.rising]
    fix = trainer.set("use_vllm", True, "vllm_mode", "colocate")
    yield change(
        iteration.mean_ns, "serving_engine", fix,
        (saved[0], saved[1], saved[2]),
        "published: 2 to 15 times the tokens per second of transformers.generate, at most the pace of the recorded GPU"
        " work; not measured here, and the copy of the weights to the engine is not counted",
        "the engine's log-probabilities differ a little from the trainer's",
    )  # fmt: skip


def _ended_sequences(iteration: Iteration, trainer: Trainer) -> Iterator[IterationChange]:
    """Use continuous batching: ended sequences leave the batch."""
    found, busy = iteration.generation, decode_busy_share(iteration)
    if found is None or busy is None or not found.decode_ns or not found.ended_share:
        return
    argument = trainer.first("use_transformers_continuous_batching", "use_transformers_paged")
    if argument is None or trainer.settings.get(argument) is True or trainer.settings.get("use_vllm") is True:
        return
    yield change(
        iteration.mean_ns, "ended_sequences", trainer.set(argument, True),
        continuous_saved_ns(found.decode_ns, busy, found.ended_share),
        f"{100 * found.ended_share:.0f} % of the computed tokens belong to sequences that had ended; at most the GPU's"
        " time for them is saved (how much of it is assumed), if the CPU keeps up: a step costs the CPU"
        f" {calibrated.CONTINUOUS_STEP.falling[1]:.1f} times as much (measured)",
        None,
    )  # fmt: skip


def continuous_saved_ns(decode_ns: float, busy: float, ended_share: float) -> tuple[float, float, float]:
    """Time that continuous batching saves in decoding, ns: low, expected, high; negative if it costs more.

    decode_ns: today's time. busy: share of it in which the GPU works. ended_share: share of tokens of ended sequences.
    """
    low, expected, high = (
        decode_ns - max(busy * (1 - share * ended_share), (1 - busy) * times) * decode_ns - call_ns
        for share, times, call_ns in zip(
            (0.0, 0.5, 1.0), calibrated.CONTINUOUS_STEP.falling, CONTINUOUS_NS, strict=True
        )
    )
    return low, expected, high


def _reference(iteration: Iteration, trainer: Trainer) -> Iterator[IterationChange]:
    """Train without a reference policy: its log-probabilities are not computed."""
    beta, spent = trainer.settings.get("beta"), iteration.ns_of(LOG_PROBABILITIES)
    if not isinstance(beta, (int, float)) or not beta or not spent or trainer.first("beta") is None:
        return
    saved = spent / max(iteration.log_probability_passes or 1.0, 1.0)
    yield change(
        iteration.mean_ns, "reference_pass", trainer.set("beta", 0.0),
        (LEAST_REFERENCE_SAVED * saved, saved, saved),
        f"the reference's log-probabilities are one of {max(iteration.log_probability_passes or 1.0, 1.0):.0f} passes"
        " over the completions without gradients",
        "nothing keeps the policy near the reference",
    )  # fmt: skip


def _one_pass(iteration: Iteration, trainer: Trainer) -> Iterator[IterationChange]:
    """Compute log-probabilities of the old policy and of the reference in one pass, if the CPU limits them."""
    passes, busy = iteration.log_probability_passes or 0.0, busy_share(iteration, LOG_PROBABILITIES)
    if passes < 2 or busy is None:
        return
    most = iteration.ns_of(LOG_PROBABILITIES) * (1 - 1 / passes) * (1 - busy)
    yield change(
        iteration.mean_ns, "one_pass",
        'one forward pass over the completions twice, with adapter_names=["__base__", ...] for the reference (PEFT)',
        (0.0, ONE_PASS_SAVED * most, most),
        f"{passes:.0f} passes launch the same kernels; the GPU works {100 * busy:.0f} % of their time (how much of the"
        " rest is saved is assumed)",
        None,
    )  # fmt: skip


def _padding(iteration: Iteration, trainer: Trainer) -> Iterator[IterationChange]:
    """Form micro-batches by tokens: each is only as long as its own completions."""
    found, phases = iteration.generation, (LOG_PROBABILITIES, FORWARD, BACKWARD)
    if found is None or not found.tokens or not found.longest or not found.sequences:
        return
    padded = max(1 - found.tokens / (found.sequences * found.longest), 0.0)
    most = padded * sum(iteration.ns_of(phase) * (busy_share(iteration, phase) or 0.0) for phase in phases)
    if not most:
        return
    yield change(
        iteration.mean_ns, "padded_completions",
        "sort completions by length, and cut each micro-batch to its longest or pack it (verl: use_dynamic_bsz=True);"
        " TRL has no argument for it",
        (PADDING_SAVED[0] * most, PADDING_SAVED[1] * most, most),
        f"{100 * padded:.0f} % of the completions' positions are padding; at most the GPU's time for them in"
        " log-probabilities, forward and backward passes is saved (prompts are not counted)",
        None,
    )  # fmt: skip


def _weight_sync(iteration: Iteration, trainer: Trainer) -> Iterator[IterationChange]:
    """Copy the weights at a link's rate, or copy only the adapters."""
    spent, whole = iteration.ns_of(WEIGHT_SYNC), trainer.weight_bytes
    if not spent or not whole:
        return
    adapters = trainer.trainable_share is not None and trainer.trainable_share < MOST_IN_ADAPTERS
    sent = whole * (trainer.trainable_share or 1.0) if adapters else whole
    saved = [max(spent - sent / rate, 0.0) for rate in calibrated.SYNC_RATE.rising]
    yield change(
        iteration.mean_ns, ("weight_sync", 1 if adapters else 0),
        "send the adapters to the engine (vLLM's LoRA requests) instead of merged weights" if adapters
        else "gather parameters in buckets before they are sent, instead of one by one",
        (saved[0], saved[1], saved[2]),
        f"{whole / 1e9:.1f} GB of weights take {spent / 1e9:.2f} s, {whole / spent:.1f} GB/s; a link copies at"
        f" {calibrated.SYNC_RATE.rising[0]:.0f} to {calibrated.SYNC_RATE.rising[2]:.0f} GB/s (assumed)",
        None,
    )  # fmt: skip


def _rewards_beside(iteration: Iteration, trainer: Trainer) -> Iterator[IterationChange]:
    """Run rewards that wait while log-probabilities are computed."""
    waiting = sum(one.ns for one in iteration.rewards if one.waits)
    saved = min(waiting, iteration.ns_of(REWARD), iteration.ns_of(LOG_PROBABILITIES))
    if not saved:
        return
    yield change(
        iteration.mean_ns, "rewards_beside",
        "start the reward functions that wait in a thread, and await them before the advantages",
        (LEAST_OVERLAPPED * saved, saved * (1 - calibrated.SPREAD.value), float(saved)),
        "neither needs the other; rewards that wait leave the CPU to the log-probabilities", None,
    )  # fmt: skip


def _larger_rollout(iteration: Iteration, trainer: Trainer) -> Iterator[IterationChange]:
    """Generate twice the completions per iteration: what the larger iteration takes, for each of its halves."""
    found, busy = iteration.generation, decode_busy_share(iteration)
    argument = trainer.first("per_device_train_batch_size")
    if found is None or busy is None or argument is None or not found.decode_ns:
        return
    low, expected, high = iteration_with(iteration, Factors(sequences=2.0))
    yield change(
        iteration.mean_ns, "rollout_batch", f"{argument} × 2",
        (iteration.mean_ns - high / 2, iteration.mean_ns - expected / 2, iteration.mean_ns - low / 2),
        "per completion: a decode step, and a pass over twice the completions, takes longer only where the GPU limits"
        " it; rewards that wait may wait for each completion; shown is the time for half of the larger iteration",
        "twice the prompts in an iteration",
    )  # fmt: skip


_ALL: tuple[Callable[[Iteration, Trainer], Iterator[IterationChange]], ...] = (
    _tail, _rewards_at_once, _rewards_in_processes, _rewards_beside, _one_ahead, _decode_without_cpu, _cache_copies,
    _serving_engine, _ended_sequences, _larger_rollout, _reference, _one_pass, _padding, _weight_sync,
)  # fmt: skip
_ON_GPU = (_one_ahead, _decode_without_cpu, _serving_engine)
"""Those that take GPUs: a generator on one of its own, CUDA graphs, a serving engine."""
