"""The page of what would make the peak of memory smaller, which `gpuprof memory` computes."""

from __future__ import annotations

from gpuprof.diagnosis.detect.proposal import Declaration, Page

PAGE = Page(
    id="memory_peak",
    applies=("training",),
    title="The peak of memory is larger than it needs to be",
    means="""
A training runs out of memory at its peak: in the loss, when the activations of all layers and the logits are there, in
the backward pass of the last layer, or in the optimizer's step. Only what is there at that moment counts. The name of
a change, and where to make it:

- *checkpoint all layers*, *checkpoint every 2nd layer*: layers keep their input and compute the rest again;
  `gradient_checkpointing=True`, or `torch.utils.checkpoint` around every second block. For every third block:
  `gpuprof memory --with checkpointing_every_3`.
- *activations on the CPU*: what layers keep is moved to the CPU and back; `activation_offloading=True` in TRL.
- *chunked or fused loss*: the logits of all rows are never there at once; Liger's fused linear cross entropy
  (`use_liger_kernel=True`), or a loss over slices of the rows.
- *half micro-batch, 2× passes*: half of `per_device_train_batch_size`, twice `gradient_accumulation_steps`.
- *8-bit optimizer*: `optim="adamw_bnb_8bit"`. *paged optimizer*, *paged 8-bit optimizer*: `optim="paged_adamw_32bit"`,
  `optim="paged_adamw_8bit"`; the driver moves their state to the CPU's memory when the GPU's runs short.
  *optimizer state on the CPU*: DeepSpeed's or torchao's offload, where the CPU updates the parameters.
- *fused optimizer*: `optim="adamw_torch_fused"`; no temporary copy of the parameters.
- *adapters in bf16*: `autocast_adapter_dtype=False`. *fused attention*: `attn_implementation="sdpa"`.
- *expandable segments*: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; less is reserved that no tensor uses.
- *cut sequences in half*: `max_length`. *packing*: passes of equal length instead of one long one among short ones.
""",
    detected="""
The peak that the allocator reported without the profiler, the model and the optimizer as the run wrote them down, and
the recorded ops with their shapes. `gpuprof memory` lists the changes that the recording offers; those that save less
than 1 % are only in its JSON.
""",
    gain="""
Memory: the peak is split into what stays between steps, the logits (12 bytes each), what all layers keep for the
backward pass, written-out scores of attention, and what one layer's backward pass takes. What layers keep is counted op
by op: each saved tensor of torch's backward formulas once. A change acts on its part, and the peak is the larger of the
moments that are left. Time: the recorded step is replayed with the change. docs/memory_changes.md compares predicted
peaks with measured ones.
""",
    wrong="""
What layers keep is not counted for functions of their own (Unsloth, Liger), experts, compiled models, and dropout
inside a model that is trained whole: then nothing is said about removing checkpointing. The time of expandable
segments is not in a recording, and is not estimated. The time of paging and of an optimizer on the CPU is not in it
either: it comes from published measurements and the GPU's link, and its interval is wide, as are those of activations
on the CPU, which may move next to the GPU's work or after it, and of a chunked or fused loss, whose share of the
recorded loss's kernels is assumed. Paged optimizers are offered where tensors are large
enough for bitsandbytes to page their state (100,000 parameters), so not for small adapters. The largest batch assumes
that passes of the run differ as the recorded ones do.
""",
)


FINDING = Declaration(
    page=PAGE,
    synonyms=("memory", "oom", "out_of_memory", "chunked_loss", "8_bit_optimizer", "paged_optimizer"),
)
