"""The training waits for batches, prepared by the training process or by too few workers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuprof.calibration import loader as calibrated
from gpuprof.calibration.quoted import more, ms, percent, us
from gpuprof.diagnosis.detect.batches.loader_workers import made_of, tensors_of, workers_of
from gpuprof.diagnosis.detect.batches.rows_on_gpu import rows_on_gpu
from gpuprof.diagnosis.detect.batches.sample_work import KINDS, LEAST_WORK_SHARE, SampleWork, sample_work
from gpuprof.diagnosis.detect.cpu.collecting import left_without_batches
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.cpu.own_lines import batch_lines
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.detect.pair.candidates import Candidate, claim_where
from gpuprof.diagnosis.detect.pair.quantities import MOST_WORK_LEFT, idle_ns
from gpuprof.diagnosis.detect.pair.signs import long_wait_ns
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import Code, call, code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import INPUT, Graph
from gpuprof.replay.mean_step import SAME_PACE, WAITS, least_on_cores, slowed_by_sharing, useful_workers
from gpuprof.replay.transform import scale, scaled, without_resource
from gpuprof.units import Assumed, Convention, Entries, Ratio, Workers

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.detect.pair.facts import Facts
    from gpuprof.diagnosis.mean_step.run_budget import Feed
    from gpuprof.replay.loader_queue import Loader

SPARE_WORKERS: Assumed[Ratio] = 1.5
"""Batches that the proposed workers can make, per batch that the training takes."""
WORKER_COUNTS: Convention[tuple[Workers, ...]] = (2, 4, 8, 16)
MANY_TENSORS: Assumed[Entries] = 24
"""Fewest tensors of a batch that are packed: one for each field of a sample is what a batch needs."""
PACKED_TENSORS: Assumed[Entries] = 8
"""Tensors of a packed batch."""
HANDED_OVER_SPREAD: Assumed[Ratio] = 1.25
"""How far the predicted step is known where waits go that no worker's pace explains."""

PAGE = Page(
    id="input_workers",
    removes="input",
    title="The training waits for the next batch",
    means="""
The training process itself reads, tokenises and collates the next batch between two steps. Meanwhile it trains
nothing, and a GPU gets no work. Worker processes prepare batches while a step runs, so the step no longer contains
the input.

Each tensor of a batch has shared memory of its own, which one thread of the training process asks the worker for and
maps, however small the tensor is. A detector's targets are a list of seven tensors for each picture: a hundred tensors
for a batch of 16, which no number of workers hands over quicker.
""",
    detected=f"""
Time in the data phase: inside a DataLoader's `__next__`, or inside a range whose name says that it loads data. It
counts if the step gets shorter when it is replayed without it; time in which the GPU still has queued work costs
nothing. Where workers already prepare the batches, their throughput counts: `gpuprof trace` measures the time per
batch inside the workers and compares what they deliver with the step time when every batch is ready. A recording
without a run shows by the iterator's name whether there are workers, but not how many: twice the number is advised
then. Many tensors: workers hand over at least 24 a batch, as the recorder counts them in lists and dictionaries, and
the training waits for batches.

Kinds of work on samples (decompressing, opening files, parsing, deep copies, resampling, spectra, maps of labels,
warps): the functions in at least {percent(LEAST_WORK_SHARE)} % of the stacks that were sampled while a batch is made,
by their names and files, in the training process or in the loader's workers.
""",
    gain=f"""
CPU time in the data phase shrinks to what the training process still has to do for a prepared batch
({ms(calibrated.FETCH_NS.low)} to {ms(calibrated.FETCH_NS.high)} ms), and the step is replayed. The step cannot become
shorter than the input's time divided by the number of workers (each {calibrated.SLOWER_BESIDE_OTHERS.value:g} times
slower than the training process, because they share its machine), nor shorter than the CPU time of the batches and of
the training divided by the CPU cores. Where Python collects all its objects while it makes batches, that is the
workers' time as well. No more workers are advised than there are cores. Where workers are already used and their
throughput is known, the mean step is that of a bounded queue with the proposed number of workers, each slowed down if
there are more workers than CPU cores; at worst the training process's own CPU time grows by
{more(calibrated.CROWDED.value)} %. Waits that throughput does not explain, as at the start of an epoch, stay. Without a
run the cost of the input is estimated from what the workers deliver: one batch per worker and step. Each tensor takes
{us(calibrated.HANDED_OVER_NS.value)} µs ({us(calibrated.HANDED_OVER_NS.low)} to {us(calibrated.HANDED_OVER_NS.high)},
assumed) of one thread: with more workers a step is never shorter than the lower end of that, and in a batch of
{PACKED_TENSORS:g} tensors the others' time is gone, until a batch comes as soon as the workers make it. Of a kind
of work on samples {percent(calibrated.SAMPLE_WORK_LEFT.value)} %
({percent(calibrated.SAMPLE_WORK_LEFT.low)} to
{percent(calibrated.SAMPLE_WORK_LEFT.high)} %, assumed) is left; that it need not be done in each epoch by the CPU has
the probability {calibrated.ONCE_ODDS.value:g} (assumed).
""",
    wrong="""
If preparing a batch waits for a disk or a network rather than for the CPU, workers help until that is saturated. An
`IterableDataset` has to split itself among its workers. Tokenising once before the training removes the work instead
of moving it; so does decoding and resizing images once, or on the GPU (`torchvision.io.decode_jpeg(...,
device="cuda")`, NVIDIA DALI), if the GPU has time to spare.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes more workers if the step gets shorter without the input."""
    if case.feed is not None:
        yield from _more_workers(case, case.feed)
        yield from _packed(case, case.feed)
        yield from _less_work(case, case.feed)
        return
    if rows_on_gpu(case) is not None:  # a worker cannot take them; see host_preprocessing
        return
    graph = case.graph
    nodes = graph.resource == INPUT
    input_ns = float(graph.duration_ns[nodes].sum()) / graph.steps
    if input_ns < calibrated.FETCH_NS.rising[1]:
        return
    work = sample_work(case) if workers_of(case) == 0 else None
    if work is not None:
        best, usual, worst = (partial(scaled, nodes=nodes, factor=work.left(level)) for level in range(3))
        yield _without(case, work, change=usual, best=best, worst=worst)
    rest = case.step_of(without_resource(graph, "input"))
    workers, cpus = workers_of(case), case.folder.cpus if case.folder else None
    lumps: dict[str, float] = {}
    if workers is None or workers > 0:
        # Starved workers each deliver one batch per step: twice the workers need half the time.
        wanted = None if workers is None else int(min(2 * workers, max(cpus or math.inf, 1)))
        if wanted is not None and workers is not None and wanted <= workers:
            return
        least_ns = case.step_ns / 2 if wanted is None else case.step_ns * (workers or 1) / wanted
    else:
        lumps = left_without_batches(case)
        moved_ns = sum((1 - left) * case.mean.lumps_ns.get(cause, 0.0) for cause, left in lumps.items())
        batch_ns = (input_ns + moved_ns) * calibrated.SLOWER_BESIDE_OTHERS.value
        counts = [n for n in WORKER_COUNTS if cpus is None or n <= cpus] or [1]
        wanted = next((n for n in counts if n * max(rest, 1.0) >= SPARE_WORKERS * batch_ns), counts[-1])
        # With a GPU, the training itself uses one core.
        least_ns = max(batch_ns / wanted, least_on_cores(_cpu_ns(case, input_ns), rest, cpus))
    number = Code("num_workers * 2") if wanted is None else wanted
    loader = call("DataLoader", ..., num_workers=number, persistent_workers=True, pin_memory=True)

    def to(fetch_ns: float) -> Change:
        def change(graph: Graph) -> Graph:
            left = min(fetch_ns * graph.steps / max(float(graph.duration_ns[nodes].sum()), 1.0), 1.0)
            return scaled(graph, nodes, left)

        return change

    yield Proposal(
        title=_title(workers, wanted),
        evidence=spans(
            case,
            f"{duration(input_ns)} {case.unit.a} go into preparing the next batch, in {_own_process(case)}"
            if workers == 0
            else f"the training waits {duration(input_ns)} {case.unit.a} for its workers to prepare the next batch",
            nodes,
        ),
        fix=case.stack.fix(
            loader,
            case.stack.setting({"dataloader_num_workers": number}, {"dataloader_persistent_workers": True}),
            inference=call("pipe", Code("inputs"), num_workers=number)
            if case.workload.engine == "transformers_pipeline"
            else loader,
        ).by("input_workers", "" if wanted is None else wanted),
        change=to(calibrated.FETCH_NS.rising[1]),
        best=to(calibrated.FETCH_NS.rising[0]),
        worst=to(calibrated.FETCH_NS.rising[2]),
        least_ns=least_ns,
        lumps=lumps,
    )


def _cpu_ns(case: Analysis, input_ns: float) -> float:
    """CPU time of a step's batches that take the training process `input_ns` to make: all of it, unless the run
    measured that part of it is waiting."""
    cpu, whole = (made_of(case.folder).get(name) for name in ("batch_cpu_ns", "batch_ns"))
    return input_ns * min(cpu / whole, 1.0) if cpu and whole else input_ns


def _title(workers: int | None, wanted: int | None) -> str:
    if workers is None:
        return "twice the input workers"
    return f"input workers {workers} → {wanted}" if workers else f"input workers: {wanted}"


def _own_process(case: Analysis) -> str:
    return "the process that runs the model" if case.workload.is_inference else "the training's own process"


def _absent(case: Analysis) -> str | None:
    if rows_on_gpu(case) is not None:
        return "batches are made on the GPU, and a worker that is forked has none"
    waited = sum(one.mean_ns or 0 for one in case.budget.excess if one.cause == "input") if case.budget else 0
    graph = case.graph
    waited += case.per_step(float(graph.duration_ns[graph.resource == INPUT].sum()))
    if case.workload.is_inference and not waited:
        return None  # requests need no DataLoader
    return f"{case.unit.a} waits {duration(waited)} for its batches"


ABSENT = Absent("more DataLoader workers", _absent)


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """A GPU that waits less for its batches."""
    waits = idle_ns(a, b, "input")
    if waits.fell(to=MOST_WORK_LEFT, least=long_wait_ns(a, b)):
        yield Candidate(
            PAGE.id,
            "waiting for data",
            f"the GPU waits {waits.ms} ms {a.unit.a} for its next batch",
            claim_where(lambda cell: cell[0] == "idle" and (cell[1] == "input" or cell[2] == "data")),
            waits.more,
        )


def _more_workers(case: Analysis, feed: Feed) -> Iterator[Proposal]:
    """Proposes the number of workers that keeps up with the training, if their pace is known."""
    loader, consumer_ns = feed.loader, case.mean.consumer_ns()
    if case.mean.fed_ns() < (1 + SAME_PACE) * consumer_ns:
        return
    wanted = useful_workers(loader, consumer_ns, feed.batches, feed.cpu_ns, feed.cpus)
    if wanted <= loader.workers:
        return
    waits = next((one for one in case.budget.excess if one.cause == "input"), None) if case.budget else None
    waited = (
        ""
        if waits is None
        else f"; {waits.steps} of {case.budget.steps} timed {case.unit}s wait"
        if case.budget
        else ""
    )
    source = "measured in the workers" if feed.measured else "estimated from what they deliver"
    text = (
        f"{loader.workers} workers need {duration(loader.batch_ns)} each for a batch ({source}), so one is ready "
        f"every {duration(loader.batch_ns / loader.workers)}; the training takes one every "
        f"{duration(consumer_ns / feed.batches)}{waited}"
    )
    yield Proposal(
        title=f"input workers {loader.workers} → {wanted}",
        evidence=(Evidence(text, lines=batch_lines(case.folder)),),
        fix=case.stack.fix(
            call("DataLoader", ..., num_workers=wanted, persistent_workers=True),
            case.stack.setting({"dataloader_num_workers": wanted}, {"dataloader_persistent_workers": True}),
        ).by("input_workers", wanted),
        change=lambda graph: graph,
        worst=partial(scale, host=calibrated.CROWDED.value),
        least_ns=feed.batches * tensors_of(case) * calibrated.HANDED_OVER_NS.low,
        loader=slowed_by_sharing(loader, wanted, feed.cpu_ns, feed.cpus),
        spread=calibrated.SPREAD.value if feed.measured else calibrated.SPREAD_INFERRED.value,
    )


def _less_work(case: Analysis, feed: Feed) -> Iterator[Proposal]:
    """Proposes to spare the workers a kind of work, if the training waits for them."""
    work, loader = sample_work(case), feed.loader
    if work is None or case.mean.fed_ns() < (1 + SAME_PACE) * case.mean.consumer_ns():
        return
    ends = [replace(loader, batch_ns=loader.batch_ns * work.left(level)) for level in range(3)]
    yield _without(case, work, loader=ends[1], loader_ends=(ends[0], ends[2]), change=lambda graph: graph)


def _without(case: Analysis, work: SampleWork, **how: Any) -> Proposal:
    """Proposes to do a kind of work on samples elsewhere, or once."""
    kind = KINDS[work.kind]
    text = f"{kind.work} takes {100 * work.share:.0f} % of the time for a batch ({work.function})"
    return Proposal(
        title=kind.title,
        evidence=(Evidence(text, lines=work.lines),),
        fix=code(kind.fix),
        needs="what it does is not random for each sample, or the GPU can do it",
        odds=calibrated.ONCE_ODDS.value,
        key=work.kind,
        **how,
    )


def _packed(case: Analysis, feed: Feed) -> Iterator[Proposal]:
    """Proposes one tensor for each field of a batch, where one thread takes over many small ones from the workers."""
    tensors, loader, made = tensors_of(case), feed.loader, made_of(case.folder).get("batch_ns")
    paced, waits = case.mean.fed_ns() - case.mean.consumer_ns(), case.mean.lumps_ns.get(WAITS, 0.0)
    if tensors < MANY_TENSORS or not made or paced + waits < SAME_PACE * case.mean_ns:
        return

    def saved(level: int) -> float:
        return (tensors - PACKED_TENSORS) * calibrated.HANDED_OVER_NS.falling[level]

    def packed(level: int) -> Loader:
        return replace(loader, batch_ns=max(float(made), loader.batch_ns - loader.workers * saved(level)))

    beyond = max(saved(1) * feed.batches - paced, 0.0)
    took = tensors * calibrated.HANDED_OVER_NS.value
    text = (
        f"a batch is {tensors:,} tensors, which one thread of the training process takes over one after another, about"
        f" {duration(took)} for each batch whatever the number of workers; a batch is ready every"
        f" {duration(loader.batch_ns / loader.workers)}, and a worker makes one in {duration(float(made))}"
    )
    yield Proposal(
        title="one tensor for each field of a batch",
        evidence=(Evidence(text),),
        fix=code('boxes = torch.cat([target["boxes"] for target in targets])')
        + "  # in collate_fn, for each field\n"
        + code('counts = [len(target["boxes"]) for target in targets]')
        + "  # boxes.split(counts) on the GPU gives them back",
        change=lambda graph: graph,
        loader=packed(1),
        loader_ends=(packed(0), packed(2)),
        lumps={WAITS: max(1 - beyond / waits, 0.0)} if waits else {},
        spread=HANDED_OVER_SPREAD if waits else 1.0,
        key="packed",
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    change=change,
    lowers=("batches",),
    role="loader_workers",
    synonyms=(
        "workers",
        "num_workers",
        "dataloader",
        "dataloader_workers",
        "data_loading",
        "input",
        "prefetch",
        "collate",
        "collate_fn",
    ),
    titles=(
        "one_tensor_for_each_field_of_a_batch",
        "samples_stored_without_compression",
        "files_kept_open",
        "annotations_parsed_once",
        "samples_without_deep_copies",
        "audio_stored_at_its_final_rate",
        "spectra_of_a_batch_on_the_gpu",
        "maps_of_labels_computed_once",
        "samples_warped_on_the_gpu",
    ),
)
