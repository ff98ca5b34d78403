"""The findings, one file each: a `PAGE` that explains it and `find(case)`, which proposes fixes for a recording."""

from __future__ import annotations

from gpuprof.diagnosis.findings import (
    adapter_casts,
    allocator,
    compile,
    cuda_graphs,
    dequantize,
    eager_attention,
    expert_loop,
    exposed_communication,
    fused_elementwise,
    input_workers,
    larger_batch,
    naive_pipeline,
    optimizer,
    padding,
    pageable_copies,
    rare_steps,
    recompiles,
    recompute,
    straggler,
    syncs,
    tf32,
    throttling,
)
from gpuprof.diagnosis.proposal import Finder, Page

_MODULES = (
    input_workers,
    syncs,
    compile,
    cuda_graphs,
    larger_batch,
    padding,
    expert_loop,
    eager_attention,
    fused_elementwise,
    recompute,
    optimizer,
    dequantize,
    tf32,
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

PAGES: tuple[Page, ...] = (*(page for page, _ in FINDINGS), straggler.PAGE)
"""What `gpuprof explain` and docs/findings say."""
