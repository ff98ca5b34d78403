"""The findings, one file each.

A file holds a `PAGE` that explains the finding, and `find(case)`, which proposes fixes for a recording; `ABSENT` where
users expect the remedy and want to know why it is not advised; and where two recordings can show that such a fix was
made, `change(a, b)`, by which a comparison recognises it.
"""

from __future__ import annotations

from gpuprof.diagnosis.detect.pair.candidates import Recogniser
from gpuprof.diagnosis.detect.proposal import Absent, Finder, Page
from gpuprof.diagnosis.findings import (
    accumulation,
    adapter_casts,
    allocator,
    autocast,
    channels_last,
    compile,
    continuous_batching,
    cuda_graphs,
    dequantize,
    eager_attention,
    expert_loop,
    exposed_communication,
    frozen_encoder,
    fused_elementwise,
    host_preprocessing,
    input_workers,
    larger_batch,
    masked_attention,
    memory_peak,
    missing_kernels,
    naive_pipeline,
    optimizer,
    padding,
    pageable_copies,
    rare_steps,
    recompiles,
    recompute,
    speculative_decoding,
    static_cache,
    straggler,
    syncs,
    tf32,
    throttling,
)

_MODULES = (
    input_workers,
    host_preprocessing,
    syncs,
    compile,
    cuda_graphs,
    accumulation,
    larger_batch,
    continuous_batching,
    speculative_decoding,
    static_cache,
    padding,
    expert_loop,
    eager_attention,
    masked_attention,
    fused_elementwise,
    recompute,
    optimizer,
    dequantize,
    tf32,
    autocast,
    channels_last,
    frozen_encoder,
    adapter_casts,
    pageable_copies,
    allocator,
    recompiles,
    rare_steps,
    exposed_communication,
    naive_pipeline,
    throttling,
)

FINDINGS: tuple[tuple[Page, Finder], ...] = tuple((module.PAGE, module.find) for module in _MODULES)
"""What is looked for in a recording, in the order of the documentation."""

PAGES: tuple[Page, ...] = (*(page for page, _ in FINDINGS), straggler.PAGE, missing_kernels.PAGE, memory_peak.PAGE)
"""What `gpuprof explain` and docs/findings say."""

ABSENT: dict[str, Absent] = {module.PAGE.id: module.ABSENT for module in _MODULES if hasattr(module, "ABSENT")}
"""Usual remedies: why they are not advised where their problem is not there."""

CHANGES: tuple[Recogniser, ...] = tuple(module.change for module in _MODULES if hasattr(module, "change"))
"""What is looked for between two recordings."""
