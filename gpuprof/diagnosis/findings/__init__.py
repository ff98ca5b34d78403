"""The findings, one file each.

A file has one declaration, `FINDING`: the page that explains the finding, `find(case)`, which proposes fixes for a
recording, why a usual remedy is not advised, `change(a, b)`, with which a comparison recognises that such a fix was
made, and other names for it. Plug-ins add more (`gpuprof.diagnosis.plug_ins`).
"""

from __future__ import annotations

from gpuprof.diagnosis.detect.declared.declaration import Declaration, Role
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerParts
from gpuprof.diagnosis.detect.declared.proposal import Absent, Finder, Page
from gpuprof.diagnosis.findings import (
    accumulation,
    adapter_casts,
    adapter_extras,
    allocator,
    autocast,
    buffer_broadcast,
    channels_last,
    compile,
    continuous_batching,
    cuda_graphs,
    cudnn_benchmark,
    debug_switches,
    dequantize,
    discarded_gradients,
    eager_attention,
    expanded_product,
    expert_loop,
    exposed_communication,
    feature_encoder,
    float64,
    fp8,
    frozen_casts,
    frozen_encoder,
    full_sort,
    fused_elementwise,
    fused_loss,
    garbage_collection,
    graph_breaks,
    host_preprocessing,
    idle_gradients,
    input_workers,
    larger_batch,
    masked_attention,
    memory_peak,
    missing_kernels,
    naive_pipeline,
    needless_logits,
    no_grad,
    odd_sizes,
    offload,
    one_hot,
    one_process_wrapper,
    optimizer,
    optimizer_matmuls,
    padding,
    pageable_copies,
    planning,
    python_loop,
    rare_steps,
    rebuilt_constants,
    rebuilt_weights,
    recompiles,
    recompute,
    recurrent_loop,
    redundant_forward,
    repeated_backward,
    repeated_lookups,
    scattered_sums,
    separate_passes,
    slow_python,
    sparse_gradients,
    sparse_matrix,
    speculative_decoding,
    square_filters,
    static_cache,
    step_metrics,
    straggler,
    syncs,
    tf32,
    throttling,
    uncached_text,
    wide_attention,
    wide_copies,
    worker_restarts,
)

_MODULES = (
    worker_restarts,
    input_workers,
    host_preprocessing,
    slow_python,
    syncs,
    step_metrics,
    debug_switches,
    python_loop,
    recurrent_loop,
    compile,
    graph_breaks,
    cuda_graphs,
    accumulation,
    separate_passes,
    larger_batch,
    continuous_batching,
    speculative_decoding,
    static_cache,
    uncached_text,
    padding,
    expert_loop,
    missing_kernels,
    rebuilt_weights,
    rebuilt_constants,
    eager_attention,
    masked_attention,
    wide_attention,
    fused_elementwise,
    fused_loss,
    needless_logits,
    redundant_forward,
    repeated_backward,
    repeated_lookups,
    scattered_sums,
    full_sort,
    one_hot,
    expanded_product,
    sparse_matrix,
    no_grad,
    idle_gradients,
    discarded_gradients,
    recompute,
    optimizer,
    optimizer_matmuls,
    sparse_gradients,
    dequantize,
    tf32,
    autocast,
    fp8,
    float64,
    odd_sizes,
    channels_last,
    cudnn_benchmark,
    square_filters,
    frozen_encoder,
    feature_encoder,
    adapter_casts,
    adapter_extras,
    frozen_casts,
    pageable_copies,
    wide_copies,
    offload,
    allocator,
    recompiles,
    planning,
    rare_steps,
    garbage_collection,
    exposed_communication,
    buffer_broadcast,
    naive_pipeline,
    one_process_wrapper,
    throttling,
)

BUILT_IN: tuple[Declaration, ...] = tuple(module.FINDING for module in (*_MODULES, straggler, memory_peak))
"""All built-in findings, in the documentation's order."""

FINDINGS: tuple[tuple[Page, Finder], ...] = tuple((one.page, one.find) for one in BUILT_IN if one.find is not None)
"""Findings that are looked for in a recording."""

HEADLINES: dict[str, str] = {
    what: words
    for one in BUILT_IN
    if isinstance(one.ledger, LedgerParts)
    for what, words in one.ledger.headlines.items()
}
"""`what` of a ledger item → the headline of a diagnosis whose step it takes most of."""

ABSENT: dict[str, Absent] = {one.id: one.absent for one in BUILT_IN if one.absent is not None}
"""Id → why a usual remedy is not advised if its problem is absent."""


def with_role(role: Role) -> str:
    """Id of the finding that others look up by a role."""
    return next(one.id for one in BUILT_IN if one.role == role)
