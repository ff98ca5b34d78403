"""Input workers end and start again with every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.own_lines import batch_lines
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import call
from gpuprof.diagnosis.sentences import duration
from gpuprof.record.patches import WORKERS
from gpuprof.replay.mean_step import WORKER_STARTS
from gpuprof.units import Assumed, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_COST_SHARE: Assumed[Share] = 0.02
"""Smallest share of the mean step for a proposal."""
FIRST_BATCH_SHARE: Assumed[Share] = 0.1
"""Share of the cost that remains if a worker's time for a batch is unknown: the training waits for the first batch of
an epoch in any case."""
SPREAD: Assumed[Ratio] = 1.15
"""Uncertainty factor of the step: how much of the cost was the first batch."""

PAGE = Page(
    id="worker_restarts",
    removes="input",
    applies=("training",),
    title="Input workers start again with every epoch",
    means="""
At the end of each epoch a DataLoader ends its worker processes, and starts new ones for the next: they are forked or
spawned, import and open what they need (`worker_init_fn`, tokenizers, files), and prepare the first batch, while the
GPU waits. With short epochs this costs more than preparing the batches does. `persistent_workers=True` keeps the
workers, and what they have opened.
""",
    detected=f"""
The recorder notes the loader's length, its workers, and that they are not kept. The steps of a run that begin an epoch
(every length-th step, at least three of them) must wait for their batch at least half a usual step longer than others,
and twice as long as nine in ten of the others. All that these steps take beyond the usual step counts: ending and
starting workers is no wait for a batch. At least {percent(LEAST_COST_SHARE)} % of the mean step.
""",
    gain="""
What these steps take beyond the usual one disappears, except one worker's time for a batch, if it was measured, or
else a tenth.
""",
    wrong="""
If the first step of an epoch also does something else (evaluating, saving without the recorder knowing it), that stays.
Kept workers hold their copy of the dataset: what an epoch changes in it (`dataset.set_epoch`) does not reach them; a
sampler's `set_epoch` does. Loaders that are made again for each epoch get new workers in any case: make one before the
first epoch. Where workers cannot be kept, load tokenizers and files in the dataset before workers are forked, not in
`worker_init_fn`.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to keep the workers between epochs."""
    budget, loader = case.budget, (case.run.loader or {}) if case.run else {}
    if budget is None:
        return
    starts = next((one for one in budget.excess if one.cause == WORKER_STARTS), None)
    if starts is None or not starts.every or not starts.mean_ns or starts.mean_ns < LEAST_COST_SHARE * budget.mean_ns:
        return
    workers, each_ns = loader.get("num_workers"), starts.mean_ns * starts.every
    made = (loader.get("made") or {}).get("batch_ns")
    text = (
        f"{workers} workers end and start again with every epoch of {starts.every} {case.unit}s: {duration(each_ns)} "
        f"each time, which adds {duration(starts.mean_ns)} to the mean {case.unit}"
    )
    yield Proposal(
        title="input workers kept between epochs",
        evidence=(Evidence(text, lines=batch_lines(case.folder)),),
        fix=case.stack.fix(
            call("DataLoader", ..., persistent_workers=True)
            + "  # one loader for all epochs; or load what workers need before they start",
            case.stack.setting({"dataloader_persistent_workers": True}),
        ).by(WORKERS, workers),
        change=lambda graph: graph,
        lumps={WORKER_STARTS: min(made / each_ns, 1.0) if made else FIRST_BATCH_SHARE},
        spread=SPREAD,
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    synonyms=("persistent_workers", "worker_start", "epoch_start", "dataloader_persistent_workers"),
    titles=("input_workers_kept_between_epochs",),
)
