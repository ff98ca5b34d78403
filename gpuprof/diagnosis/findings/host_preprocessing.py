"""Samples are prepared on the thread that launches the model's work."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gpuprof.diagnosis.case import Case
from gpuprof.diagnosis.detect.evidence import spans
from gpuprof.diagnosis.detect.proposal import Page, Proposal
from gpuprof.diagnosis.sentences import in_ms
from gpuprof.projection.sample_preparation import preparing
from gpuprof.replay.transform import scaled

LEAST = 0.05
"""Of a step what preparing samples takes, from which on it is worth a fix."""
LEFT = (0.01, 0.05, 0.2)
"""Of the time what is left on the thread: fetching what was prepared."""
SLOWER = 1.25
"""In a process of its own preparing takes longer, for results have to be handed over."""
COUNTS = (1, 2, 4, 8, 16)

PAGE = Page(
    id="host_preprocessing",
    removes="input",
    title="Samples are prepared between two passes of the model",
    means="""
Images are decoded and resized, videos read or text tokenised by the thread that launches the model's work, sample after
sample, while the GPU waits. This grows with the batch, so a larger one does not help. It can be done while the GPU
works on the samples before, by other threads or processes, or on the GPU itself.
""",
    detected="""
Stretches of at least 2 ms in which the thread launches nothing, at least 30 % of which are ops that work on the CPU or
Python code that prepares samples (image processors, tokenizers, decoders of video, collators), and phases that load
data outside of a DataLoader; from 5 % of the step on.
""",
    gain="""
That time becomes 5 % of what it was, 1 to 20 %: fetching what was prepared. The step is never shorter than preparing
takes the workers, 1.25 times as long as now divided by their number.
""",
    wrong="""
A single request that nothing precedes still waits for its own preparation: this is a gain in throughput. Without
recorded Python stacks, preparation in code that calls no ops of PyTorch is not seen.
""",
)


def find(case: Case) -> Iterator[Proposal]:
    """Preparing samples elsewhere, where it takes a part of the step."""
    graph = case.graph
    nodes = preparing(graph)
    took_ns = case.per_step(float(graph.duration_ns[nodes].sum()))
    if took_ns < LEAST * case.step_ns:
        return
    rest = max(case.step_of(scaled(graph, nodes, 0.0)), 1.0)
    workers = next((n for n in COUNTS if n * rest >= SLOWER * took_ns), COUNTS[-1])
    share = 100 * took_ns / case.step_ns
    text = f"preparing samples takes the CPU {in_ms(took_ns)} a step, {share:.0f} % of it, and grows with the batch"
    some = f"{workers} workers" if workers > 1 else "a worker"
    yield Proposal(
        title=f"preprocessing in {some}",
        evidence=spans(case, text, nodes),
        fix=case.stack.fix(
            f"a Dataset whose __getitem__ prepares a sample, and DataLoader(..., num_workers={workers})",
            inference=_for_inference(case, workers),
            transformers="dataset.map(prepare, batched=True) before the training, or in __getitem__, and "
            + (case.stack.setting({"dataloader_num_workers": workers}) or f"DataLoader(..., num_workers={workers})"),
        ),
        change=partial(scaled, nodes=nodes, factor=LEFT[1]),
        best=partial(scaled, nodes=nodes, factor=LEFT[0]),
        worst=partial(scaled, nodes=nodes, factor=LEFT[2]),
        least_ns=SLOWER * took_ns / workers,
    )


def _for_inference(case: Case, workers: int) -> str:
    if case.workload.engine == "transformers_pipeline":
        return (
            f"pipe(inputs, num_workers={workers})  # an iterable of inputs, so that the next is prepared meanwhile\n"
            'or on the GPU: AutoImageProcessor.from_pretrained(..., use_fast=True), processor(images, device="cuda")'
        )
    return (
        f"ProcessPoolExecutor({workers}) that prepares the next requests while the GPU works\n"
        "or prepare on the GPU: torchvision.transforms.v2 on CUDA tensors"
    )
