"""The module and the line of Python from which work was launched, if the recording has stacks."""

from __future__ import annotations

import re
import sys

import numpy as np

from gpuprof.timeline.nesting import Nesting, climb, nest
from gpuprof.tracefile.trace import ABSENT, FLOW_FWDBWD, I32, I64, NO_TEXT, Trace

MODULE = "nn.Module: "
"""What comes before the name of a module, in its frame or range."""
_FIRST_PART = re.compile(r"(\w+)(?:/|\.py\()")
_LIBRARIES = frozenset(
    [
        "torch",
        "torchvision",
        "transformers",
        "peft",
        "accelerate",
        "trl",
        "datasets",
        "unsloth",
        "unsloth_zoo",
        "lightning",
        "pytorch_lightning",
        "deepspeed",
        "bitsandbytes",
        "xformers",
        "flash_attn",
        "triton",
        "numpy",
        "pandas",
        "liger_kernel",
        "torchtune",
        "axolotl",
        "tqdm",
    ]
)
_NUMBERED = re.compile(r"_\d+$")


class FrameIndex:
    """Answers "in which module, in which frame" for moments on CPU threads."""

    def __init__(self, trace: Trace, nesting: Nesting) -> None:
        self._trace, self._nesting = trace, nesting
        frames = trace.frames
        self._frames = nest(frames.thread, frames.start_ns, frames.end_ns, frames.python_id) if len(frames) else None
        self._is_module = trace.rows_named(frames.name, lambda text: text.startswith(MODULE))
        self._is_user = trace.rows_named(frames.name, _is_user_frame)
        self._is_range = trace.rows_named(trace.ops.name, lambda text: text.startswith(MODULE))

    def module(self, thread: I32, t: I64, op: I64) -> I32:
        """String id of the innermost nn.Module around each moment; for backward work that of its forward op.

        Modules are frames in recordings with stacks, and ranges where `gpuprof trace` marked them.
        """
        in_frames, in_ops = self.module_rows(thread, t, op)
        found = np.full(len(t), NO_TEXT, np.int32)
        for rows, name in ((in_ops, self._trace.ops.name), (in_frames, self._trace.frames.name)):
            known = rows >= 0
            found[known] = name[rows[known]]
        return found

    def module_rows(self, thread: I32, t: I64, op: I64) -> tuple[I64, I64]:
        """The innermost nn.Module around each moment as (row of the frames, row of the ops); at most one is not -1."""
        in_frames = self._climb(thread, t, self._is_module)
        in_ops = np.full(len(t), -1, np.int64)
        missing = np.flatnonzero((in_frames < 0) & (op >= 0))
        in_ops[missing] = self._range_around(op[missing])
        missing = missing[in_ops[missing] < 0]
        if len(missing) and (self._frames is not None or self._is_range.any()):
            forward = self._forward_of(op[missing])
            missing, forward = missing[forward >= 0], forward[forward >= 0]
            ops = self._trace.ops
            in_frames[missing] = self._climb(ops.thread[forward], ops.start_ns[forward], self._is_module)
            in_ops[missing] = np.where(in_frames[missing] < 0, self._range_around(forward), -1)
        return in_frames, in_ops

    def module_parents(self) -> tuple[I64, I64]:
        """Per row of the frames and of the ops: the nn.Module around it, for rows that are one; -1 for all others."""
        parents = []
        for nesting, wanted in ((self._frames, self._is_module), (self._nesting, self._is_range)):
            found = np.full(len(wanted), -1, np.int64)
            if nesting is not None:
                rows = np.flatnonzero(wanted)
                found[rows] = climb(nesting.parent[rows], nesting.parent, wanted)
            parents.append(found)
        return parents[0], parents[1]

    def _range_around(self, op: I64) -> I64:
        """Row of the innermost range of a module around each op, or -1."""
        return climb(op, self._nesting.parent, self._is_range)

    def frame(self, thread: I32, t: I64, op: I64) -> I32:
        """String id of the innermost frame of the user's code around each moment, else of any frame.

        Recordings of 2021 keep the stack with the op; there it is the op's.
        """
        found = self.own(thread, t)
        bare = np.flatnonzero(found == NO_TEXT)
        rows = self._climb(thread[bare], t[bare], ~self._is_module)
        found[bare[rows >= 0]] = self._trace.frames.name[rows[rows >= 0]]
        stacked = np.flatnonzero((found == NO_TEXT) & (op >= 0))
        if len(self._trace.ops):
            found[stacked] = self._trace.ops.stack[op[stacked]]
        return found

    def own(self, thread: I32, t: I64) -> I32:
        """String id of the innermost frame of the user's code around each moment; NO_TEXT: in none."""
        rows = self._climb(thread, t, self._is_user)
        found = np.full(len(t), NO_TEXT, np.int32)
        found[rows >= 0] = self._trace.frames.name[rows[rows >= 0]]
        return found

    def _climb(self, thread: I32, t: I64, wanted: np.ndarray) -> I64:
        """Row of the innermost frame around each moment that is `wanted`, or -1."""
        out = np.full(len(t), -1, np.int64)
        if self._frames is None:
            return out
        known = np.flatnonzero(t != ABSENT)
        rows = self._frames.innermost(thread[known], t[known])
        out[known] = climb(rows, self._frames.parent, wanted)
        return out

    def _forward_of(self, op: I64) -> I64:
        """Row of the forward op that the nearest backward ancestor-or-self of each op belongs to, by fwdbwd arrows."""
        partner = self._partners()
        found = climb(op, self._nesting.parent, partner >= 0)
        return np.where(found >= 0, partner[found], -1)

    def _partners(self) -> I64:
        """Per op row: its forward op, where an arrow forward → backward ends at its start."""
        flows, ops = self._trace.flows, self._trace.ops
        partner = np.full(len(ops) + 1, -1, np.int64)
        rows = np.flatnonzero((flows.kind == FLOW_FWDBWD) & (flows.id != ABSENT))
        begins, ends = rows[flows.begins[rows] == 1], rows[flows.begins[rows] == 0]
        if not len(begins) or not len(ends):
            return partner
        order = begins[np.lexsort((flows.time_ns[begins], flows.id[begins]))]
        k = np.minimum(np.searchsorted(flows.id[order], flows.id[ends]), len(order) - 1)
        same = flows.id[order[k]] == flows.id[ends]
        source, target = order[k[same]], ends[same]
        forward = self._nesting.innermost(flows.thread[source], flows.time_ns[source])
        backward = self._nesting.innermost(flows.thread[target], flows.time_ns[target])
        both = (forward >= 0) & (backward >= 0)
        partner[backward[both]] = forward[both]
        return partner


def module_class(text: str) -> str:
    """`Linear` of `nn.Module: Linear_12`."""
    return _NUMBERED.sub("", text.removeprefix(MODULE))


def frame_of_stack(text: str) -> str:
    """The frame to name of a whole `Call stack` of 2021, `inner.py(3): f;outer.py(7): g`: the innermost of the user's
    own, else the innermost. A single frame is returned as it is."""
    frames = text.split(";")
    return next((one for one in frames if _is_user_frame(one)), frames[0])


def _is_user_frame(text: str) -> bool:
    """Whether a frame is the user's own: not built in, not of the standard library or a package that trains.

    The profiler cuts the folder of installed packages off a file's path, so a package is recognised by its name.
    """
    if text.startswith(("<", MODULE)) or "site-packages" in text or "dist-packages" in text:
        return False
    first = _FIRST_PART.match(text)
    return first is None or (first[1] not in _LIBRARIES and first[1] not in sys.stdlib_module_names)
