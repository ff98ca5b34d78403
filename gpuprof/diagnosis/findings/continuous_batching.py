"""Inference that takes as long for more requests at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gpuprof.diagnosis.detect.batches.batch_scaling import best_factor, scaled_batch, slower_host
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import Code, Fix, as_fix, call
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.changes.batch import model_phases
from gpuprof.replay.graph import DEVICE

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

PAGE = Page(
    id="continuous_batching",
    applies=("inference",),
    title="More requests at once would take as long",
    means="""
An iteration of inference reads every weight once and launches every kernel once, for one request as for many. With few
requests at once the GPU waits for the CPU, or for its memory, while most of its arithmetic is unused. Continuous
batching lets requests join and leave a running batch after each iteration, so that it stays large.
""",
    detected="""
The iteration is replayed with its kernels scaled to 2, 4 and 8 times the requests, as for a larger batch in training.
The factor proposed is the largest whose last doubling still gains 20 % in requests per second.
""",
    gain="""
As for a larger batch: each kernel's arithmetic and traffic grow with the requests, except reading weights. What the CPU
does for each request (preprocessing, copies) grows with them too.
""",
    wrong="""
A single request does not get faster: the gain is in throughput, and a request's latency grows to that of the larger
iteration. The caches of more requests need memory, and a trace does not show how much.
""",
)

_FIXES: dict[str, Callable[[str, int, str], Fix | str]] = {
    "vllm": lambda more, factor, size: (
        f"send {more} at once  # where --max-num-seqs is set lower, raise it; memory: --gpu-memory-utilization"
    ),
    "sglang": lambda more, factor, size: (
        f"send {more} at once  # --max-running-requests must not be lower; memory: --mem-fraction-static"
    ),
    "tgi": lambda more, factor, size: (
        f"send {more} at once  # where --max-concurrent-requests or --max-batch-size is set lower, raise it"
    ),
    "tensorrt_llm": lambda more, factor, size: f"send {more} at once  # where --max_batch_size is set lower, raise it",
    "diffusers": lambda more, factor, size: (
        call("pipe", Code("prompts"), num_images_per_prompt=Code("...")) + f"  # {factor} times the images in a call"
    ),
    "transformers_pipeline": lambda more, factor, size: (
        call("pipe", Code("inputs"), batch_size=Code(size)) + "  # a list of inputs, not one by one"
    ),
    "transformers_generate": lambda more, factor, size: (
        "serve with continuous batching: vLLM, SGLang, or " + call("model.generate_batch", Code("inputs"), ...)
    ),
}
"""Engine → fix. The engine's limit is its own option, with a default that is usually larger than the recorded batch: it
is only raised if it is in the way, and never set to a number that may lower it."""


def _otherwise(more: str, factor: int, size: str) -> str:
    return f"{factor} times the requests in a batch: a queue in front of the model that collects them"


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes a larger number of simultaneous requests if that gains."""
    found = best_factor(case)
    if found is None:
        return
    factor, step_ns = found
    graph, batch = case.graph, case.workload.batch
    busy = case.per_step(float(graph.duration_ns[graph.resource == DEVICE].sum()))
    model = model_phases(graph)
    now = f"{batch:,} requests at once" if batch else "a batch"
    text = (
        f"{now}: the GPU works {duration(busy)} of {case.usual_step}; {factor} times as many would take"
        f" {duration(case.stated(step_ns))}"
    )
    more = f"{batch * factor} requests" if batch else f"{factor} times the requests"
    size = f"{batch * factor}" if batch else f"{factor} * batch_size"
    write = _FIXES.get(case.workload.engine or "", _otherwise)
    yield Proposal(
        title=f"requests at once {batch} → {batch * factor}" if batch else f"requests at once × {factor}",
        evidence=spans(case, text, model & (graph.lane >= 0)),
        fix=as_fix(write(more, factor, size)),
        change=scaled_batch(case, factor),
        best=scaled_batch(case, factor, 0),
        worst=slower_host(case, scaled_batch(case, factor, 2)),
        work=float(factor),
        claims=("decoding",),
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    synonyms=("batching", "more_requests", "concurrency"),
    titles=("requests_at_once", "the_requests_at_once"),
)
