"""Which module and which line of Python some work was launched from, where the recording has stacks."""

from __future__ import annotations

import re
import sys

import numpy as np

from gpuprof.timeline.nesting import Nesting, climb, nest
from gpuprof.tracefile.model import ABSENT, FLOW_FWDBWD, I32, I64, NO_TEXT, Trace

_MODULE = "nn.Module: "
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
    """Answers "in which module, in which frame" for moments on host threads."""

    def __init__(self, trace: Trace, nesting: Nesting) -> None:
        self._trace, self._nesting = trace, nesting
        frames = trace.frames
        self._frames = nest(frames.thread, frames.start_ns, frames.end_ns, frames.python_id) if len(frames) else None
        self._is_module = trace.rows_named(frames.name, lambda text: text.startswith(_MODULE))
        self._is_user = trace.rows_named(frames.name, _is_user_frame)
        self._is_range = trace.rows_named(trace.ops.name, lambda text: text.startswith(_MODULE))

    def module(self, thread: I32, t: I64, op: I64) -> I32:
        """String id of the innermost nn.Module around each moment; for backward work that of its forward op.

        Modules stand among the frames of recordings with stacks, and as ranges where `gpuprof trace` marked them.
        """
        found = self._climb(thread, t, self._is_module)
        missing = np.flatnonzero((found == NO_TEXT) & (op >= 0))
        found[missing] = self._range_around(op[missing])
        missing = missing[found[missing] == NO_TEXT]
        if len(missing) and (self._frames is not None or self._is_range.any()):
            forward = self._forward_of(op[missing])
            missing, forward = missing[forward >= 0], forward[forward >= 0]
            ops = self._trace.ops
            modules = self._climb(ops.thread[forward], ops.start_ns[forward], self._is_module)
            found[missing] = np.where(modules == NO_TEXT, self._range_around(forward), modules)
        return found

    def _range_around(self, op: I64) -> I32:
        """String id of the innermost range of a module around each op."""
        rows = climb(op, self._nesting.parent, lambda r, _: ~self._is_range[r])
        return np.where(rows >= 0, self._trace.ops.name[rows], NO_TEXT).astype(np.int32)

    def frame(self, thread: I32, t: I64, op: I64) -> I32:
        """String id of the innermost frame of the user's code around each moment, else of any frame.

        Recordings of 2021 keep the stack with the op; there it is the op's.
        """
        found = self._climb(thread, t, self._is_user)
        bare = found == NO_TEXT
        found[bare] = self._climb(thread[bare], t[bare], ~self._is_module)
        stacked = np.flatnonzero((found == NO_TEXT) & (op >= 0))
        if len(self._trace.ops):
            found[stacked] = self._trace.ops.stack[op[stacked]]
        return found

    def _climb(self, thread: I32, t: I64, wanted: np.ndarray) -> I32:
        out = np.full(len(t), NO_TEXT, np.int32)
        if self._frames is None:
            return out
        known = np.flatnonzero(t != ABSENT)
        names = self._trace.frames.name
        rows = self._frames.innermost(thread[known], t[known])
        rows = climb(rows, self._frames.parent, lambda r, _: ~wanted[r])
        hit = rows >= 0
        out[known[hit]] = names[rows[hit]]
        return out

    def _forward_of(self, op: I64) -> I64:
        """Row of the forward op that the nearest backward ancestor-or-self of each op belongs to, by fwdbwd arrows."""
        partner = self._partners()
        found = climb(op, self._nesting.parent, lambda rows, _: partner[rows] < 0)
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
    return _NUMBERED.sub("", text.removeprefix(_MODULE))


def _is_user_frame(text: str) -> bool:
    """Whether a frame is the user's own: not built in, not of the standard library or a package that trains.

    The profiler cuts the folder of installed packages off a file's path, so a package is told by its name.
    """
    if text.startswith(("<", _MODULE)) or "site-packages" in text or "dist-packages" in text:
        return False
    first = _FIRST_PART.match(text)
    return first is None or (first[1] not in _LIBRARIES and first[1] not in sys.stdlib_module_names)
