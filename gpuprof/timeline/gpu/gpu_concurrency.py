"""Whether the GPUs of one process work at the same time or one after the other."""

from __future__ import annotations

from gpuprof.timeline.intervals import join
from gpuprof.timeline.timeline import Timeline
from gpuprof.units import Assumed, Ratio, Share

BUSY_SHARE: Assumed[Share] = 0.1
"""A GPU that works less than this part of the time that any works holds little of the model."""
GPUS_AT_ONCE: Assumed[Ratio] = 1.2
"""If fewer GPUs than this are busy on average while any is, they take turns. A pipeline that splits a batch in only two
has 1.33 on two GPUs, and more on more GPUs."""


def take_turns(timeline: Timeline) -> int:
    """Number of this process's GPUs that work one after the other; 0 if they work at the same time, or if there is
    one."""
    busy = [device.busy for device in timeline.devices]
    any_busy = join(*busy).total
    at_work = [one.total for one in busy if one.total >= BUSY_SHARE * any_busy]
    return len(at_work) if len(at_work) > 1 and sum(at_work) < GPUS_AT_ONCE * any_busy else 0
