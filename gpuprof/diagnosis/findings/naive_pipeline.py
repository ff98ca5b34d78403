"""A model spread over the GPUs of one process, of which one works at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import batch as calibrated
from gpuprof.calibration.quoted import more
from gpuprof.costs import hardware
from gpuprof.diagnosis.detect.batches.batch_scaling import USABLE_MEMORY
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.gpu.replicas import Replicas, find_replicas
from gpuprof.diagnosis.result.fix import Code, call, code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.transform import removed
from gpuprof.timeline.gpu.gpu_concurrency import take_turns
from gpuprof.units import Assumed, Bytes

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

GRADIENT_BYTES: Assumed[Bytes] = 4
"""Most bytes that DDP exchanges per trainable parameter: adapters are fp32 by default."""

TITLE = "one process per GPU instead of one for all"

PAGE = Page(
    id="naive_pipeline",
    applies=("training",),
    title="One process uses several GPUs",
    means="""
The layers of the model are placed on several GPUs, as `device_map="auto"` does. A batch goes through the first GPU's
layers, then through the second's, and backward in reverse: while one GPU works, the others wait for its result. All
of them together are no faster than one.

`torch.nn.DataParallel` copies the whole model to all GPUs in each step, and each runs a part of the batch. One process
launches everything: its threads take turns at Python's lock. Results come back to the first GPU, and so do gradients,
while the others wait. Trainers that find several GPUs do this by themselves when they are started by `python` and not
by `torchrun`.
""",
    detected="""
Two or more GPUs of one process, each busy for at least a tenth of the time that any GPU is, with on average fewer
than 1.2 busy at once: a pipeline that splits its batch in only two has 1.33. DataParallel: two or more such GPUs, busy
at once or not, and its functions `Broadcast` and `Gather` in each step.
""",
    gain=f"""
One process per GPU, each with its own batch: the step of the replayed graph without the copies between GPUs, and N
times the work for N GPUs. The exchange of gradients (four bytes per trainable parameter over the link between the GPUs)
widens the interval. If the memory peaks of all GPUs together do not fit into one, the model has to be sharded (FSDP);
gathering weights widens the interval by {more(calibrated.SHARDED.value)} %.

DataParallel: the work of all GPUs but the first is removed, with that of the threads which launch it, and so are the
copies between GPUs. The time in which the main thread waits for these threads is divided by the number of GPUs; at
worst it stays as it is. No program was timed for it.
""",
    wrong="""
If the GPUs have no fast link, sharding a large model costs more than predicted. For inference of one sequence at a
time there is no second batch.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes one process per GPU, where one copies its model to all of them or lays it over them."""
    replicas = find_replicas(case)
    if replicas is not None:
        yield _of_replicas(case, replicas)
        return
    gpus = take_turns(case.timeline)
    if not gpus:
        return
    trace = case.trace
    between = case.nodes_of_gpu(trace.rows_named(trace.gpu.name, lambda text: "PtoP" in text))
    text = (
        f"{gpus} GPUs of this process take turns: one waits while the other works. "
        f"{case.per_step(between.sum()):,.0f} copies a step go from one GPU to another"
    )
    fits = _fits(case, gpus)
    start = f"torchrun --nproc_per_node={gpus}"
    if fits is not False:
        model = call("from_pretrained", ..., device_map={"": Code('int(os.environ["LOCAL_RANK"])')})
        model += '  # instead of "auto"'
        unknown = "" if fits else "\n# if the whole model fits on one GPU: memory was not recorded"
        torch = call("DistributedDataParallel", Code("model.to(local_rank)")) + f"  # started by {start}{unknown}"
        transformers = model + f"\n# started by {start}, which makes it data parallel{unknown}"
    else:
        torch = call("fully_shard", Code("layer")) + " for each layer, then " + call("fully_shard", Code("model"))
        torch += f"  # started by {start}"
        transformers = case.stack.setting(
            {"fsdp": True if case.stack.has("activation_checkpointing") else "full_shard auto_wrap"},
            note=f"  # without device_map, started by {start}\n# the whole model does not fit on one GPU",
        )
    yield Proposal(
        title=TITLE,
        evidence=spans(case, text, between),
        fix=case.stack.fix(torch, transformers=transformers),
        change=partial(removed, nodes=between),
        work=float(gpus),
        same_batch=True,
        spread=(1 + _exchange_share(case, gpus)) * (calibrated.SHARDED.value if fits is False else 1.0),
    )


def _of_replicas(case: Analysis, found: Replicas) -> Proposal:
    """A process for each GPU in place of threads for all."""
    graph, gpus = case.graph, found.gpus
    ns = case.per_step(float(graph.duration_ns[found.exchange & graph.on_gpu].sum()))
    text = (
        f"torch.nn.DataParallel copies the model to {gpus} GPUs {case.unit.a}, whose passes threads of one process"
        f" launch; weights, results and gradients are copied for {duration(ns)} of GPU time"
    )
    start = f"torchrun --nproc_per_node={gpus}"
    best, usual, worst = found.changes()
    return Proposal(
        title=TITLE,
        evidence=spans(case, text, found.exchange),
        fix=case.stack.fix(
            call("DistributedDataParallel", Code("model.to(local_rank)"), device_ids=Code("[local_rank]"))
            + f"  # in place of DataParallel, started by {start}; with a DistributedSampler, and a\n"
            + f"# batch of 1 / {gpus} in each process",
            transformers=code(start) + "  # in place of python: the Trainer then uses DistributedDataParallel itself",
        ),
        change=usual,
        best=best,
        worst=worst,
        spread=1 + _exchange_share(case, gpus),
        key="replicas",
    )


def _fits(case: Analysis, gpus: int) -> bool | None:
    """Whether one GPU has room for what lies on all; None where the run does not record what it uses."""
    totals = [info.memory_bytes for info in case.trace.meta.gpus if info.memory_bytes]
    if case.run is None or not case.run.memory.peak_bytes or not totals:
        return None
    return case.run.memory.peak_bytes * gpus * calibrated.UNEVEN.value <= USABLE_MEMORY * min(totals)


def _exchange_share(case: Analysis, gpus: int) -> float:
    """How much longer the exchange of gradients makes a step that it does not overlap with, as a share of it."""
    info = case.trace.meta.gpus
    gpu = hardware.find(info[0].name, info[0].memory_bytes) if info else None
    trainable = ((case.run and case.run.model) or {}).get("trainable")
    if gpu is None or not gpu.link_bytes_per_s or not trainable:
        return 0.1
    seconds = 2 * (gpus - 1) / gpus * trainable * GRADIENT_BYTES / (gpu.link_bytes_per_s / 2)
    return float(np.clip(1e9 * seconds / case.step_ns, 0.0, 0.5))


FINDING = Declaration(
    page=PAGE,
    find=find,
    synonyms=("data_parallel", "dataparallel", "device_map", "device_map_auto", "pipeline", "model_parallel"),
    titles=("one_process_per_gpu_instead_of_one_for_all",),
)
