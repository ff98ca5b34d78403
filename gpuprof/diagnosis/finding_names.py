"""Findings by the names that people use: id, words of the title, or the usual name of the remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpuprof.diagnosis.detect.proposal import Page

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "input_workers": (
        "workers",
        "num_workers",
        "dataloader",
        "dataloader_workers",
        "data_loading",
        "input",
        "prefetch",
    ),
    "host_preprocessing": ("preprocessing", "tokenization", "image_processing"),
    "continuous_batching": ("batching", "more_requests", "concurrency"),
    "speculative_decoding": ("speculative", "draft_model", "assisted_generation"),
    "static_cache": ("kv_cache", "cache_implementation", "key_value_cache"),
    "syncs": ("sync", "item", "synchronize", "synchronization", "cpu_sync", "loss_item"),
    "compile": ("torch_compile", "inductor", "fusion"),
    "cuda_graphs": ("cuda_graph", "cudagraphs", "reduce_overhead", "graphs"),
    "accumulation": ("gradient_accumulation", "gradient_accumulation_steps", "micro_batch", "micro_batches"),
    "larger_batch": ("batch", "batch_size", "per_device_train_batch_size"),
    "padding": ("packing", "padding_free", "group_by_length", "length_grouping"),
    "expert_loop": ("moe", "experts", "grouped_gemm", "grouped_mm", "mixture_of_experts"),
    "eager_attention": ("attention", "flash_attention", "flash_attn", "sdpa", "attn_implementation", "eager"),
    "masked_attention": ("flex_attention", "varlen", "block_mask", "document_mask", "packed_attention"),
    "fused_elementwise": ("liger", "liger_kernel", "liger_kernels", "fused_kernels", "rmsnorm", "elementwise"),
    "recompute": ("gradient_checkpointing", "checkpointing", "activation_checkpointing", "recomputation"),
    "optimizer": ("fused_optimizer", "adamw", "adamw_torch_fused", "foreach", "fused_adamw"),
    "dequantize": ("qlora", "quantization", "4bit", "bitsandbytes", "nf4", "dequantization"),
    "tf32": ("allow_tf32", "float32_matmul_precision"),
    "autocast": ("bf16", "amp", "mixed_precision", "fp16"),
    "channels_last": ("nhwc", "memory_format"),
    "frozen_encoder": ("reference_model", "precompute", "cache_latents", "vae", "teacher", "frozen"),
    "adapter_casts": ("lora_casts", "autocast_adapter_dtype", "fp32_adapters", "adapters"),
    "pageable_copies": ("pinned", "pin_memory", "pinned_memory", "non_blocking", "pageable"),
    "allocator": ("empty_cache", "expandable_segments", "cudamalloc", "memory_fragmentation"),
    "recompiles": ("recompilation", "dynamic_shapes", "recompile", "pad_to_multiple_of"),
    "rare_steps": ("saving", "save_steps", "evaluation", "eval_steps", "logging", "checkpoints"),
    "exposed_communication": ("communication", "nccl", "all_reduce", "no_sync", "ddp", "fsdp", "overlap"),
    "naive_pipeline": ("device_map", "device_map_auto", "pipeline", "model_parallel"),
    "throttling": ("thermal", "clocks", "power_limit", "temperature", "power"),
    "straggler": ("slow_rank", "stragglers", "imbalance", "load_imbalance"),
    "memory_peak": ("memory", "oom", "out_of_memory", "chunked_loss", "8_bit_optimizer", "paged_optimizer", "offload"),
    "missing_kernels": ("fast_path", "flash_linear_attention", "causal_conv1d", "mamba", "fallback"),
}
"""Id of a finding → names of its remedy and of its subject, as `key` writes them."""

TITLES: Mapping[str, tuple[str, ...]] = {
    "host_preprocessing": ("preprocessing_in", "random_numbers_made_on_the_gpu"),
    "continuous_batching": (
        "requests_at_once",
        "the_requests_at_once",
    ),
    "static_cache": ("static_key_value_cache",),
    "masked_attention": ("attention_that_skips_what_its_mask_excludes",),
    "syncs": (
        "no_values_read_from_the_gpu_within_the_step",
        "no_sizes_that_depend_on_values",
        "no_torch_cuda_synchronize_in_the_step",
    ),
    "cuda_graphs": (
        "torch_compile_with_cuda_graphs",
        "cuda_graphs_for_the_compiled_model",
        "cuda_graphs_for_decoding",
    ),
    "larger_batch": ("the_batch",),
    "padding": (
        "no_padding_the_same_samples",
        "batches_of_samples_of_similar_length",
    ),
    "expert_loop": ("grouped_gemm_instead_of_an_expert_loop",),
    "eager_attention": ("fused_attention_instead_of_eager",),
    "fused_elementwise": ("fused_norm_rotary_gate_and_loss_liger",),
    "recompute": ("no_gradient_checkpointing",),
    "dequantize": ("bf16_weights_instead_of_quantised_ones",),
    "tf32": ("tf32_matrix_multiplications",),
    "autocast": ("bf16_autocast", "bf16_autocast_without_cudnn_attention", "fp16_autocast"),
    "frozen_encoder": (
        "reference_log_probabilities_computed_once",
        "outputs_of_frozen_modules_computed_once",
    ),
    "adapter_casts": ("adapters_in_bf16",),
    "pageable_copies": ("pinned_memory_asynchronous_copies",),
    "allocator": (
        "no_empty_cache_in_the_step",
        "memory_kept_by_the_allocator",
    ),
    "recompiles": (
        "no_cudnn_attention_it_plans_again_for_every_length",
        "fixed_shapes",
        "lengths_padded_to_a_multiple_of",
        "fewer_different_shapes",
    ),
    "rare_steps": ("saving_and_evaluating_less_often",),
    "exposed_communication": (
        "gradients_exchanged_once_per_optimizer_step",
        "communication_overlapped_with_computation",
    ),
    "naive_pipeline": ("one_process_per_gpu_instead_of_one_for_all",),
    "throttling": ("cooling_and_power_for_the_full_gpu_clock",),
    "straggler": (
        "as_fast_as_the_others",
        "rank_as_fast_as_the_others",
    ),
}
"""Id of a finding → titles that its fixes have in a diagnosis, as `without_numbers` leaves them; those that are
SYNONYMS are not repeated."""


def key(text: str) -> str:
    """A name without case, blanks and punctuation: `Gradient-Checkpointing` → `gradient_checkpointing`."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def without_numbers(name: str) -> str:
    """A name as `key` writes it without the numbers of one run: `batch_4_16` → `batch`."""
    return "_".join(word for word in name.split("_") if not word.isdigit())


def pages_named(text: str, pages: Sequence[Page]) -> list[Page]:
    """The pages that a name may mean: one by its id, a synonym, its title or that of a fix, else all whose
    id, synonyms and title hold every word of it. Empty if there is none."""
    wanted = key(text)
    if not wanted:
        return []
    for name in (wanted, without_numbers(wanted)):
        for page in pages:
            if name in (page.id, key(page.title), *SYNONYMS.get(page.id, ()), *TITLES.get(page.id, ())):
                return [page]
    words = set(wanted.split("_"))
    return [page for page in pages if words <= _words(page)]


def _words(page: Page) -> set[str]:
    return {word for name in (page.id, page.title, *SYNONYMS.get(page.id, ())) for word in key(name).split("_")}
