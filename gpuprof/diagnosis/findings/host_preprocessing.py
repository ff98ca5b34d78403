"""Samples are prepared on the thread that launches the model's work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.calibration import loader as calibrated
from gpuprof.calibration.quoted import ms, percent, us
from gpuprof.diagnosis.detect.batches.fetched import ALL_BUT_FEW, Fetching, fetching
from gpuprof.diagnosis.detect.batches.loader_workers import workers_of
from gpuprof.diagnosis.detect.batches.rows_on_gpu import FEWEST_ROWS, RowsOnGpu, rows_on_gpu
from gpuprof.diagnosis.detect.cpu.collecting import left_without_batches
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.cpu.offloaded import computed_on_cpu
from gpuprof.diagnosis.detect.cpu.own_lines import batch_lines
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.repeated.copied_tables import find_copied_tables
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import Code, Fix, call, code, other_way
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.changes.sample_preparation import PREPARING_SHARE, in_stretches_with, preparing
from gpuprof.replay.graph import HOST, INPUT, Graph
from gpuprof.replay.loader_queue import Loader
from gpuprof.replay.mean_step import SAME_PACE
from gpuprof.replay.transform import scaled
from gpuprof.timeline.cpu.cpu_compute import computing
from gpuprof.timeline.nesting import climb
from gpuprof.tracefile.trace import I64, OP, Mask
from gpuprof.units import Assumed, Convention, Ns, Ratio, Share, Workers

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_PREPARING_SHARE: Assumed[Share] = 0.05
"""Smallest share of the step of preparing samples for a fix."""
STAYS_ON_THREAD: Assumed[tuple[Share, Share, Share]] = (0.01, 0.05, 0.2)
"""Share of the time that remains on the thread, for fetching prepared samples."""
WORKER_SLOWER: Assumed[Ratio] = 1.25
"""Factor on preparing in a separate process, which has to hand over its results."""
CROWDED: Assumed[Ratio] = 1.5
"""Threads of an op, per core that the run may use, from which on they are in each other's way."""
LONGEST_ROW_NS: Assumed[Ns] = 100_000
"""Longest time for a sample of a data set of the program's own that only takes rows: a picture is read in more."""
ROWS_SHARE: Assumed[Share] = 0.5
"""Smallest share of taking rows one by one of the time for a batch: wide rows take as long to copy in any way."""
WORKER_COUNTS: Convention[tuple[Workers, ...]] = (1, 2, 4, 8, 16)
RANDOM = frozenset(
    f"aten::{name}"
    for name in (
        "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "normal", "normal_",
        "uniform_", "random_", "bernoulli", "bernoulli_", "exponential_", "multinomial", "poisson",
    )
)  # fmt: skip
"""Ops that make random numbers, on the device of their tensor."""
ORDER = frozenset(("aten::randperm", "aten::random_"))
"""Those of them that order samples, or make a loader's seed."""

WHOLE = "rows of a batch taken at once"

PAGE = Page(
    id="host_preprocessing",
    removes="input",
    title="Samples are prepared between two passes of the model",
    means="""
Images are decoded and resized, videos read or text tokenised by the thread that launches the model's work, sample
after sample, while the GPU waits. This grows with the batch, so a larger one does not help. Other threads or
processes can do it while the GPU works on the samples before, or the GPU itself can. Random numbers (noise, masks)
that the CPU generates and then copies also belong on the GPU. Where a DataLoader's batches are late, the work in its
workers or in the training process can also be done once and cached, instead of decoding a picture or tokenising a
text in each epoch. Photos are mostly decoded at full size and then shrunk: a JPEG's decoder can leave out what a
smaller picture does not need.

Torch computes on tensors in host memory in as many threads as the machine has cores. A container that may use a few of
them has all these threads take turns, and an op ends when the last one does.
""",
    detected=f"""
Stretches of at least 2 ms in which the thread launches nothing, at least 30 % of which are ops that work on the CPU or
Python code that prepares samples (image processors, tokenizers, decoders of video, collators), and phases that load
data outside a DataLoader, if they take at least {percent(LEAST_PREPARING_SHARE)} % of the step. Random numbers: ops
such as `aten::randn` that launch nothing, outside a DataLoader; they belong to the preparation of samples where other
work takes 30 % or more of it (augmented samples). Samples prepared once: the training waits for its workers, or
prepares batches itself, for at least {percent(LEAST_PREPARING_SHARE)} % of the step. What the CPU computes from the
model's outputs does not count (see `offload`), nor do tables that it computes at each call (see `rebuilt_constants`).
Rows taken at once: of the stacks that were sampled while the training process makes a batch, half take rows of a
`TensorDataset` one by one, and the others stack them. A data set of the program's own counts, too, if its `__getitem__`
calls no Python function but those of pandas, or none and takes less than {us(LONGEST_ROW_NS)} µs for a sample; then
its probability is {calibrated.OWN_ROWS_ODDS.value:g} (assumed). Or the
loader takes {FEWEST_ROWS} rows or more for a batch and does nothing else but join them by kernels: its tensors are on
the GPU, where no worker can reach them. Kept batches: nine in ten of these stacks are in a
library's collate function, without the user's code, a tokenizer or a decoder, and no random numbers are made.
Threads: the recorder notes at least {CROWDED:g} times as many for an op as the run may use cores, and ops that compute
on tensors in host memory take {percent(LEAST_PREPARING_SHARE)} % of the step.
""",
    gain=f"""
{percent(STAYS_ON_THREAD[1])} % ({percent(STAYS_ON_THREAD[0])} to {percent(STAYS_ON_THREAD[2])} %) of that time is left,
for fetching what was prepared. The step is never shorter than what the workers take: {WORKER_SLOWER:g} times the
present time divided by their number. An op that makes random numbers becomes one launch
({us(calibrated.RANDOM_LAUNCH_NS.low)} to {us(calibrated.RANDOM_LAUNCH_NS.high)} µs, assumed); the prediction keeps the
copy to the GPU, although it is no longer needed. Preparing samples once leaves {calibrated.PREPARED_ONCE.value:g}
({calibrated.PREPARED_ONCE.low:g} to {calibrated.PREPARED_ONCE.high:g}) of the time for a batch (assumed). With one
thread for each core {calibrated.CROWDED_THREADS.value:g} ({calibrated.CROWDED_THREADS.low:g} to
{calibrated.CROWDED_THREADS.high:g}) of the time of those ops is left (assumed, probability
{calibrated.CROWDED_THREADS_ODDS.value:g}). It is likely,
not certain, that this is possible ({calibrated.ONCE_ODDS.value:g}, assumed): it is listed under *Worth trying*. So are
batches that are kept, which take {ms(calibrated.FETCH_NS.low)} ms (0 to {ms(calibrated.FETCH_NS.value)}). A batch whose
rows are taken at once takes {calibrated.WHOLE_BATCH.value:g} ({calibrated.WHOLE_BATCH.low:g} to
{calibrated.WHOLE_BATCH.high:g}) times what stacking its rows takes now, and what any batch takes
({ms(calibrated.FETCH_NS.low)} to {ms(calibrated.FETCH_NS.high)} ms).
On the GPU, {calibrated.ROWS_AT_ONCE.value:g} rows' time is left of a batch ({calibrated.ROWS_AT_ONCE.low:g} to
{calibrated.ROWS_AT_ONCE.high:g}, assumed).
""",
    wrong="""
A single request still waits for its own preparation: the gain is in throughput. Without recorded Python stacks,
preparation in code that calls no ops of PyTorch is not seen.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to prepare samples elsewhere if that takes part of the step, to make random numbers on the GPU, and to
    prepare batches only once if the training waits for them."""
    if not case.workload.is_inference:
        yield from _once(case)
    yield from _fewer_threads(case)
    graph = case.graph
    random = _making_random_numbers(case)
    yield from _on_the_gpu(case, random)
    nodes = preparing(graph).copy()
    drawn, whole = (float(graph.duration_ns[mask].sum()) for mask in (nodes & (random >= 0), nodes))
    if whole - drawn < PREPARING_SHARE * whole:
        nodes &= random < 0  # noise alone needs no worker; augmented samples include theirs
    computed = computed_on_cpu(case)
    if computed is not None:
        # Computed from the GPU's results, which no worker has; Python in between belongs to it.
        nodes &= ~computed.stretches & ~in_stretches_with(graph, computed.stretches)
    tables = find_copied_tables(case)
    if tables is not None:
        nodes &= ~tables.nodes  # the same for any samples
    took_ns = case.per_step(float(graph.duration_ns[nodes].sum()))
    if took_ns < LEAST_PREPARING_SHARE * case.step_ns:
        return
    rest = max(case.step_of(scaled(graph, nodes, 0.0)), 1.0)
    workers = next((n for n in WORKER_COUNTS if n * rest >= WORKER_SLOWER * took_ns), WORKER_COUNTS[-1])
    share = 100 * took_ns / case.step_ns
    text = (
        f"preparing samples takes the CPU {duration(took_ns)} {case.unit.a}, {share:.0f} % of it, and grows"
        f" with the batch"
    )
    some = f"{workers} workers" if workers > 1 else "a worker"
    yield Proposal(
        title=f"preprocessing in {some}",
        evidence=spans(case, text, nodes),
        fix=case.stack.fix(
            "a Dataset whose __getitem__ prepares a sample, and " + call("DataLoader", ..., num_workers=workers),
            inference=_for_inference(case, workers),
            transformers=call("dataset.map", Code("prepare"), batched=True)
            + " before the training, or in __getitem__, and "
            + (case.stack.setting({"dataloader_num_workers": workers}) or call("DataLoader", ..., num_workers=workers)),
        ),
        change=partial(scaled, nodes=nodes, factor=STAYS_ON_THREAD[1]),
        best=partial(scaled, nodes=nodes, factor=STAYS_ON_THREAD[0]),
        worst=partial(scaled, nodes=nodes, factor=STAYS_ON_THREAD[2]),
        least_ns=WORKER_SLOWER * took_ns / workers,
    )


def _fewer_threads(case: Analysis) -> Iterator[Proposal]:
    """Proposes one thread for each core, if ops on the CPU use more: in a container they see the whole machine's."""
    run, graph = case.folder, case.graph
    if run is None or not run.cpus or not run.own.threads or run.own.threads < CROWDED * max(run.cpus, 1):
        return
    nodes = case.nodes_within(computing(case.timeline)) & (graph.lane >= 0) & ~graph.waits
    took = case.per_step(float(graph.duration_ns[nodes].sum()))
    if took < LEAST_PREPARING_SHARE * case.step_ns:
        return
    cores = max(int(run.cpus), 1)
    text = (
        f"ops on tensors in host memory take {duration(took)} {case.unit.a}, each in {run.own.threads:,} threads, and"
        f" the run may use {cores:,} core{'s' if cores > 1 else ''}"
    )
    best, usual, worst = (partial(scaled, nodes=nodes, factor=left) for left in calibrated.CROWDED_THREADS.rising)
    yield Proposal(
        title="one thread for each core",
        evidence=spans(case, text, nodes),
        fix=call("torch.set_num_threads", cores) + f"  # at the start, or OMP_NUM_THREADS={cores} before it",
        change=usual,
        best=best,
        worst=worst,
        odds=calibrated.CROWDED_THREADS_ODDS.value,
        needs="these ops work in several threads",
        key="threads",
    )


def _once(case: Analysis) -> Iterator[Proposal]:
    """Proposes to do the costly part of preparing samples once and keep it, if the training waits for its batches."""
    feed, graph = case.feed, case.graph
    nodes = graph.resource == INPUT
    if feed is not None and feed.loader.workers > 0:
        if case.mean.fed_ns() < (1 + SAME_PACE) * case.mean.consumer_ns():
            return
        loader = feed.loader
        text = (
            f"{loader.workers} workers need {duration(loader.batch_ns)} each for a batch,"
            f" {duration(feed.cpu_ns)} of CPU time"
        )
        evidence = (Evidence(text, lines=batch_lines(case.folder)),)
        rows = _one_by_one(case, fetching(case, workers=True), loader.batch_ns)
        if rows is not None:
            yield _whole_batches(case, evidence, rows, loader.batch_ns, loader)
            return
        best, usual, worst = (
            replace(loader, batch_ns=loader.batch_ns * left) for left in calibrated.PREPARED_ONCE.rising
        )
        yield _prepared_once(case, evidence, loader=usual, loader_ends=(best, worst), change=lambda graph: graph)
        return
    took = case.per_step(float(graph.duration_ns[nodes].sum()))
    if took < LEAST_PREPARING_SHARE * case.step_ns:
        return
    on_gpu = rows_on_gpu(case)
    if on_gpu is not None and on_gpu.is_all:
        yield _rows_on_gpu(case, on_gpu)
        return
    known = fetching(case) if workers_of(case) == 0 else None
    rows = _one_by_one(case, known, took)
    if rows is not None:
        text = (
            f"the training's own process takes a batch's rows from {rows.source} one by one, and stacks them:"
            f" {duration(took)} {case.unit.a}, {100 * rows.share:.0f} % of it for taking them"
        )
        yield _whole_batches(case, spans(case, text, nodes), rows, took, nodes)
        return
    if known is not None and known.joined >= ALL_BUT_FEW and not _draws(case, nodes):
        yield _kept(case, nodes, took)
        return
    text = f"the training's own process prepares each batch: {duration(took)} {case.unit.a}"
    best, usual, worst = (partial(scaled, nodes=nodes, factor=factor) for factor in calibrated.PREPARED_ONCE.rising)
    yield _prepared_once(case, spans(case, text, nodes), change=usual, best=best, worst=worst)


@dataclass(frozen=True, slots=True)
class _Rows:
    """How the rows of a batch are taken one by one."""

    source: str
    share: float
    """Of the time for a batch."""
    stacked: float
    """Share of stacking them of both."""
    is_own: bool
    """Whether a data set of the program's own takes them."""


def _one_by_one(case: Analysis, known: Fetching | None, batch_ns: float) -> _Rows | None:
    """How rows are taken one by one, if making a batch is little else. A data set of the program's own that calls no
    Python function may read a picture in C: a row takes less time than that."""
    if known is None:
        return None
    samples = int(_loader_facts(case).get("batch_size") or 0)
    own = known.of_own if samples and batch_ns * known.of_own <= LONGEST_ROW_NS * samples else 0.0
    share = known.rows + known.of_tables + own
    if share < ROWS_SHARE or share + known.stacked < ALL_BUT_FEW:
        return None
    source = "the TensorDataset" if known.rows >= max(known.of_tables, own) else "the data set"
    if known.of_tables >= max(known.rows, own):
        source = "a table of pandas"
    return _Rows(source, share, known.stacked / (share + known.stacked), known.rows < 0.5 * share)


def _whole_batches(
    case: Analysis, evidence: tuple[Evidence, ...], rows: _Rows, took: float, where: Mask | Loader
) -> Proposal:
    """Proposes one index per tensor and batch instead of one per row. took: ns that a batch of rows takes; where: the
    nodes that make it, or the loader whose workers do."""
    best, usual, worst = (
        min(rows.stacked * copied + fetch / took, 1.0)
        for copied, fetch in zip(calibrated.WHOLE_BATCH.rising, calibrated.FETCH_NS.rising, strict=True)
    )
    if isinstance(where, Loader):
        each = [replace(where, batch_ns=took * left) for left in (best, usual, worst)]
        how: dict[str, Any] = {"loader": each[1], "loader_ends": (each[0], each[2]), "change": lambda graph: graph}
    else:
        changes = [partial(scaled, nodes=where, factor=left) for left in (best, usual, worst)]
        how = {"best": changes[0], "change": changes[1], "worst": changes[2], "lumps": left_without_batches(case)}
    return Proposal(
        title=WHOLE,
        evidence=evidence,
        fix=_own_rows() if rows.is_own else _tensor_rows(case),
        odds=calibrated.OWN_ROWS_ODDS.value if rows.is_own else 1.0,
        needs="taking a sample has no random step" if rows.is_own else "",
        key="whole_batches",
        **how,
    )


def _rows_on_gpu(case: Analysis, found: RowsOnGpu) -> Proposal:
    """Proposes one index per tensor and batch where the data set's tensors are on the GPU."""
    best, usual, worst = (
        partial(scaled, nodes=found.nodes, factor=min(left / found.rows, 1.0))
        for left in calibrated.ROWS_AT_ONCE.rising
    )
    took = case.per_step(float(case.graph.duration_ns[found.nodes & ~case.graph.on_gpu].sum()))
    text = (
        f"the loader takes {found.rows:,.0f} rows {case.unit.a} one by one from tensors on the GPU, and joins them"
        f" there: {duration(took)} of CPU time"
    )
    return Proposal(
        title=WHOLE,
        evidence=spans(case, text, found.nodes),
        fix=code("for rows in torch.randperm(len(x), device='cuda').split(batch_size): batch = x[rows], y[rows]")
        + "  # in place of the DataLoader; or\n"
        + call("DataLoader", Code("dataset"), sampler=Code("rows"), batch_size=None)
        + "  # with rows = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)",
        change=usual,
        best=best,
        worst=worst,
        lumps=left_without_batches(case),
        key="whole_batches",
    )


def _own_rows() -> Fix:
    """For a data set of the program's own: torch's fetcher asks for all rows of a batch where it can."""
    return (
        code("self.x, self.y = torch.as_tensor(frame[columns].values), torch.as_tensor(frame[target].values)")
        + "  # once, in __init__\n"
        + code("def __getitems__(self, rows): return self.x[rows], self.y[rows]")
        + "  # in place of one __getitem__ for each row\n"
        + call("DataLoader", Code("dataset"), batch_size=..., collate_fn=Code("lambda batch: batch"))
        + "\nor, if the table fits on the GPU: "
        + code("for rows in torch.randperm(len(x), device='cuda').split(batch_size): batch = x[rows]").otherwise()
    )


def _tensor_rows(case: Analysis) -> Fix:
    """For torch's own data set of tensors."""
    return (
        code(f"rows = BatchSampler({_sampler(case)}, batch_size, drop_last={_drops_last(case)})")
        + "  # of torch.utils.data\n"
        + call("DataLoader", Code("dataset"), sampler=Code("rows"), batch_size=None, pin_memory=True)
        + "\nor, if the table fits on the GPU: "
        + code("batch = [tensor[rows] for tensor in tensors]").otherwise()
        + "  # all on the GPU"
    )


def _sampler(case: Analysis) -> str:
    """What gives the order of the samples, as code."""
    name = _loader_facts(case).get("sampler")
    return f"{name}(dataset)" if name in ("RandomSampler", "SequentialSampler") else "sampler"


def _drops_last(case: Analysis) -> bool:
    return _loader_facts(case).get("drop_last") is True


def _loader_facts(case: Analysis) -> dict[str, Any]:
    return (None if case.folder is None else case.folder.own.loader) or {}


def _kept(case: Analysis, nodes: Mask, took: float) -> Proposal:
    """Proposes to keep joined batches, where making a batch (`nodes`: `took` ns a step) is only to join samples."""
    left = (0.0, calibrated.FETCH_NS.low, calibrated.FETCH_NS.value)
    best, usual, worst = (partial(scaled, nodes=nodes, factor=min(ns / took, 1.0)) for ns in left)
    text = f"the training's own process joins samples to a batch, which are ready: {duration(took)} {case.unit.a}"
    return Proposal(
        title="joined batches kept",
        evidence=spans(case, text, nodes),
        fix=code('batches = [batch.to("cuda") for batch in loader]')
        + "  # once, or without .to in host memory\n"
        + code("random.shuffle(batches)")
        + "  # in each epoch",
        change=usual,
        best=best,
        worst=worst,
        lumps=left_without_batches(case),
        changes="the same samples share a batch in every epoch",
        needs="neither the samples nor how they are joined have a random step, and all batches fit in memory",
        odds=calibrated.ONCE_ODDS.value,
        key="kept",
    )


def _draws(case: Analysis, nodes: Mask) -> bool:
    """Whether random numbers are made in some of these nodes, beyond the order of the samples."""
    ops = case.ops_named((RANDOM - ORDER).__contains__)
    scopes = case.graph.scope[nodes & (case.graph.scope >= 0)]
    return bool((climb(scopes, case.timeline.nesting.parent, ops) >= 0).any())


def _prepared_once(case: Analysis, evidence: tuple[Evidence, ...], **how: Any) -> Proposal:
    decoded = (
        "decode, resize or tokenise every sample once, before the training, into arrays of bytes\n"
        "in memory or in a memory-mapped file; only random steps stay in __getitem__\nor, for photos: "
        + code('image.draft("RGB", (size, size))').otherwise()
        + "  # before its first use: JPEGs at 1/2, 1/4 or 1/8"
    )
    mapped = call("dataset.map", Code("prepare"), batched=True) + "  # once: the result is kept on disk"
    return Proposal(
        title="samples prepared once",
        evidence=evidence,
        fix=case.stack.fix(decoded, transformers=mapped),
        needs="the costly part of preparing a sample gives the same each time (no random step before it), and its "
        "results fit in memory or on a quick disk",
        odds=calibrated.ONCE_ODDS.value,
        key="once",
        **how,
    )


def _making_random_numbers(case: Analysis) -> I64:
    """Per node the op on the CPU that makes random numbers and contains it, or -1; without work of a DataLoader, which
    belongs in its workers."""
    graph, ops, links = case.graph, case.trace.ops, case.timeline.links
    parent = case.timeline.nesting.parent
    outermost = case.outermost(case.ops_named(RANDOM.__contains__) & (ops.kind == OP))
    found = np.zeros(len(ops), bool)
    found[outermost] = True
    launching = climb(links.op[links.op >= 0], parent, found)
    found[launching[launching >= 0]] = False
    host = np.flatnonzero((graph.lane >= 0) & ~graph.waits & (graph.resource == HOST) & (graph.scope >= 0))
    op = np.full(len(graph), -1, np.int64)
    op[host] = climb(graph.scope[host], parent, found)
    return op


def _on_the_gpu(case: Analysis, op: I64) -> Iterator[Proposal]:
    """Proposes to make random numbers where they are used."""
    graph, nodes = case.graph, op >= 0
    took_ns = case.per_step(float(graph.duration_ns[nodes].sum()))
    if took_ns < LEAST_PREPARING_SHARE * case.step_ns:
        return
    names = sorted({case.trace.strings[case.trace.ops.name[row]] for row in np.unique(op[nodes]).tolist()})
    more = f" and {len(names) - 2} others" if len(names) > 2 else ""
    text = f"random numbers made on the CPU ({', '.join(names[:2])}{more}) take it {duration(took_ns)} {case.unit.a}"
    yield Proposal(
        title="random numbers made on the GPU",
        evidence=spans(case, text, nodes),
        fix=call("torch.randn", ..., device="cuda")
        + '  # instead of .to("cuda") afterwards; likewise rand, randint, normal_',
        change=partial(_launched, op=op, nodes=nodes, launch_ns=calibrated.RANDOM_LAUNCH_NS.rising[1]),
        best=partial(_launched, op=op, nodes=nodes, launch_ns=calibrated.RANDOM_LAUNCH_NS.rising[0]),
        worst=partial(_launched, op=op, nodes=nodes, launch_ns=calibrated.RANDOM_LAUNCH_NS.rising[2]),
        changes="other random numbers for the same seed",
        key="random",
    )


def _launched(graph: Graph, op: I64, nodes: Mask, launch_ns: float) -> Graph:
    """The graph in which each of these ops only takes the CPU time of a launch."""
    total = np.bincount(op[nodes], weights=graph.duration_ns[nodes])
    share = np.minimum(launch_ns / np.maximum(total, 1.0), 1.0)
    duration = graph.duration_ns.copy()
    duration[nodes] *= share[op[nodes]]
    return graph.with_durations(duration)


def _for_inference(case: Analysis, workers: int) -> Fix:
    if case.workload.engine == "transformers_pipeline":
        return (
            call("pipe", Code("inputs"), num_workers=workers)
            + "  # an iterable of inputs, so that the next is prepared meanwhile\nor on the GPU: "
            + call("AutoImageProcessor.from_pretrained", ..., use_fast=True).otherwise()
            + ", "
            + call("processor", Code("images"), device="cuda").otherwise()
        )
    return call("ProcessPoolExecutor", workers) + (
        " that prepares the next requests while the GPU works\n"
        + other_way("prepare on the GPU: torchvision.transforms.v2 on CUDA tensors")
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    lowers=("computing_on_cpu", "batches"),
    synonyms=("preprocessing", "tokenization", "image_processing"),
    titles=(
        "one_thread_for_each_core",
        "preprocessing_in",
        "random_numbers_made_on_the_gpu",
        "samples_prepared_once",
        "rows_of_a_batch_taken_at_once",
        "joined_batches_kept",
    ),
)
