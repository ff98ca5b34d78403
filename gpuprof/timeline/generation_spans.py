"""CPU time of a training that generates tokens: by ranges, or else by long series of single-token passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuprof.calibration import iterations as calibrated
from gpuprof.record.phases.phase_names import ADVANTAGE, ENVIRONMENT, GENERATION, REWARD, WEIGHT_SYNC, WHOLE
from gpuprof.timeline.intervals import EMPTY, Intervals, union
from gpuprof.timeline.iteration_phases import PhaseSpan, is_pause, phase_of, phase_spans
from gpuprof.timeline.phases import HostPhases
from gpuprof.timeline.workload import single_token_embeddings
from gpuprof.tracefile.trace import I64, OP, Trace
from gpuprof.units import Assumed, Share

MOST_PASSED: Assumed[Share] = 0.5
"""Largest share of a series' ops with gradients for it to be generation: with more, a backward pass goes through it.
Most trainings record no gradients while they generate."""
AROUND = (ENVIRONMENT, REWARD, ADVANTAGE, WEIGHT_SYNC, *WHOLE)
"""Phases in which no model is trained, and no tokens are generated to train on."""


def with_generation(trace: Trace, host: HostPhases) -> HostPhases:
    """The phases of a training's ops, those of generation included. Without a backward pass there is no training: what
    only generates is inference."""
    if not len(host.backward):
        return host
    spans = phase_spans(trace)
    if not spans:
        return host.with_generation(trace, decoding(trace, host.backward), EMPTY)
    found = host.with_generation(trace, _of(spans, (GENERATION,)), _of(spans, AROUND))
    # A range says what its time is spent on, also that of a pause in the recording.
    named = found.named | trace.rows_named(trace.ops.name, lambda text: phase_of(text) is not None or is_pause(text))
    return replace(found, named=named)


def _of(spans: tuple[PhaseSpan, ...], phases: tuple[str, ...]) -> Intervals:
    mine = [span for span in spans if span.phase in phases]
    return union(np.array([one.start_ns for one in mine], np.int64), np.array([one.end_ns for one in mine], np.int64))


def decoding(trace: Trace, backward: Intervals) -> Intervals:
    """Series of at least the calibrated number of forward passes of one token per sequence, without a backward pass
    between them. A decoder that is trained step by step also has such passes, but a backward pass goes through them.

    A series lasts from the first of them until the pass after the last would have begun, if all take the usual time.
    """
    begun: I64 = single_token_embeddings(trace)
    if len(begun) < calibrated.LEAST_TOKENS.whole:
        return EMPTY
    series = np.searchsorted(backward.start, begun)
    starts, ends = [], []
    for k in np.unique(series).tolist():
        own = begun[series == k]
        if len(own) < calibrated.LEAST_TOKENS.whole or differentiated(trace, int(own[0]), int(own[-1])):
            continue
        each = int(np.median(np.diff(own)))
        limit = int(backward.start[k]) if k < len(backward) else int(own[-1]) + each
        starts.append(int(own[0]))
        ends.append(min(int(own[-1]) + each, limit))
    return union(np.array(starts, np.int64), np.array(ends, np.int64))


def differentiated(trace: Trace, start_ns: int, end_ns: int) -> bool:
    """Whether a backward pass goes through the ops of a stretch of time: with gradients on they have sequence numbers,
    which the ops of their backward pass have, too."""
    ops = trace.ops
    inside = (ops.kind == OP) & (ops.start_ns >= start_ns) & (ops.start_ns <= end_ns)
    numbers = np.unique(ops.sequence[inside & (ops.sequence >= 0) & (ops.forward_thread <= 0)])
    passed = np.isin(numbers, ops.sequence[ops.forward_thread > 0])
    return len(numbers) > 0 and float(passed.mean()) >= MOST_PASSED
