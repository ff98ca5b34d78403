"""Memory that a training takes."""

from __future__ import annotations

from gpuprof.calibration.number import Number

LOGIT_BYTES = Number(
    12.0, 10.0, 14.0, "bytes", "measured",
    "Bytes per logit at the peak of a loss: logits in single precision, their logarithms and their gradients. Three "
    "models with checkpointing, whose peak is the loss, held 12.0, 12.1 and 12.2.",
    command="python -m benchmarks.memory",
)  # fmt: skip
LAYER_BYTES = Number(
    50.0, 31.0, 80.0, "bytes", "measured",
    "Kept for the backward pass per token, layer and unit of the hidden size: 34 in theory (Korthikanti et al., 2022, "
    "without attention scores), 31 to 75 in ten fine-tunes of dense models.",
    command="python -m benchmarks.memory",
)  # fmt: skip
ONE_LAYER = Number(
    50.0, 34.0, 80.0, "bytes", "measured",
    "The same for the layer that is being recomputed, with the gradients that pass through it: 37 and 60 in two "
    "fine-tunes.",
    command="python -m benchmarks.memory",
)  # fmt: skip
LINE_MAY = Number(
    1.1, 1.0, 1.15, "", "measured",
    "A slope read off a run's own peaks holds within this factor: predicted peaks of longer passes came within "
    "1.05.",
    command="python -m benchmarks.memory",
)  # fmt: skip
ALL_GROWS_LEAST = Number(
    0.9, 0.6, 1.0, "", "assumed",
    "Share of a peak that certainly grows, if the whole peak is assumed to: the libraries' workspaces do not.",
)  # fmt: skip
ALL_GROWS_MOST = Number(
    1.03, 1.0, 1.5, "", "assumed",
    "The most that such a peak grows, relative to proportional growth: blocks that are rounded up may grow by more.",
)  # fmt: skip
CONTEXT_BYTES = Number(
    1_500_000_000, 1_000_000_000, 2_000_000_000, "bytes", "measured",
    "Driver, CUDA context and libraries: 1.5 GB in addition to what the allocator held, on H200s with torch 2.11. The "
    "interval is a guess.",
)  # fmt: skip
FRAGMENTS = Number(
    1.04, 1.01, 1.1, "", "measured",
    "Reserved over allocated at the peak: 1.01 and 1.04 in two recordings.",
)  # fmt: skip
UNSEEN_STATIC = Number(
    0.01, 0.005, 0.02, "", "measured",
    "Uncertainty of the weights of layers and experts that were not recorded: two layers of 128 experts came "
    "out 0.9 % below what was measured, from a recording of four layers of 32.",
)  # fmt: skip
EIGHT_BIT_STATE = Number(
    2.05, 2.03, 2.08, "bytes", "measured",
    "State of an 8-bit Adam per trained parameter, two moments with the scales of their blocks: 2.045, 2.055 and 2.067 "
    "in three fine-tunes with bitsandbytes.",
    ("scenarios/qwen3_8b_unsloth/recording", "scenarios/qwen3_32b_unsloth/recording",
     "scenarios/gpt_oss_20b_unsloth/recording"),
)  # fmt: skip
EIGHT_BIT_HOST_NS = Number(
    47_000, 35_000, 65_000, "ns", "measured",
    "CPU time of a step of bitsandbytes' 8-bit Adam per tensor, a kernel each: 40 and 55 µs in two fine-tunes on one "
    "host.",
    ("scenarios/qwen3_8b_unsloth/recording", "scenarios/qwen3_32b_unsloth/recording"),
)  # fmt: skip
EIGHT_BIT_GPU_NS = Number(
    7_000, 6_000, 9_000, "ns", "measured",
    "The same of the GPU's time for a small tensor: 6.0 and 7.9 µs.",
    ("scenarios/qwen3_8b_unsloth/recording", "scenarios/qwen3_32b_unsloth/recording"),
)  # fmt: skip
PAGED_RATE = Number(
    0.5, 0.2, 0.9, "", "published",
    "Rate at which paged optimizer state that does not fit comes to the GPU and leaves it again, once a step: its "
    "bytes over that time, as a share of the link's stated rate in one direction. bitsandbytes' documentation gives "
    "half of the rate or less, with prefetching over PCIe 3.0; the ends are a guess.",
)  # fmt: skip
PAGED_HOST_NS = Number(
    20_000, 5_000, 60_000, "ns", "assumed",
    "CPU time per tensor of asking the driver for its paged state before the update, in addition to the 8-bit Adam's.",
)  # fmt: skip
OFFLOADED_LAYERS = Number(
    1.0, 0.0, 3.0, "", "assumed",
    "Layers whose activations are on the GPU at a time, in addition to those of the layer that goes backward, where "
    "all are moved to the CPU and back: those on their way.",
)  # fmt: skip
OFFLOAD_NS = Number(
    0.6, 0.15, 1.7, "ns", "published",
    "Additional time of a step per trained parameter with Adam's state on the CPU, which updates the parameters: "
    "0.23 and 0.55 (torchao) and 1.7 (DeepSpeed, not tuned) with a Ryzen 5600, 1.5 (Megatron-LM) and, with the update "
    "within the backward pass, 0.0 to 0.6 (prime-rl) on servers, as published with the code. A longer backward pass to "
    "hide it in, more cores and faster memory of the CPU make it less.",
)  # fmt: skip
CHUNK_BYTES = Number(
    8.0, 4.0, 16.0, "bytes", "assumed",
    "Bytes of a loss that computes the logits in chunks, per token and unit of the hidden size: the gradient of the "
    "hidden states, and a chunk of logits that is about as large as these.",
)  # fmt: skip
CHUNKED_MATMULS = Number(
    1.1, 1.0, 1.5, "", "assumed",
    "GPU time of the head's matmuls in a loss that goes through the logits in chunks, over that with all of them: "
    "smaller matmuls, and 1.5 where the backward pass computes the logits again.",
)  # fmt: skip
CHUNKED_REST = Number(
    0.8, 0.3, 1.5, "", "assumed",
    "The same of the loss's other kernels: 0.3 in one fused kernel, 1.5 where its forward part is done again.",
)  # fmt: skip
CHUNKED_HOST = Number(
    4.0, 1.0, 12.0, "", "assumed",
    "The same of the CPU time of their ops, which are launched for each chunk.",
)  # fmt: skip
BACKWARD_BYTES = Number(
    10.0, 0.0, 24.0, "bytes", "assumed",
    "Gradients of activations while the last layer goes backward, per token and unit of the hidden size, in addition "
    "to what all layers keep.",
)  # fmt: skip
SCORE_BACKWARD = Number(
    1.4, 1.0, 1.7, "", "measured",
    "Scores of eager attention that the backward pass of one layer takes, over those that it keeps (6 bytes each): "
    "their gradient in single precision, once before and once after the softmax, 8 bytes; 8.6 in one fine-tune.",
    ("scenarios/eager_attention/recording",),
)  # fmt: skip
KEPT_MAY = Number(
    1.0, 0.94, 1.04, "", "measured",
    "What layers keep for the backward pass, over what is counted op by op: 0.97, 0.97, 0.99 and 1.01 in four "
    "fine-tunes of Llamas and a Qwen3 that were measured with and without checkpointing.",
    ("scenarios/checkpointing/recording", "scenarios/llama8b_cookbook/recording",
     "scenarios/tinyllama_cookbook/recording", "scenarios/qwen3_8b_lora/recording"),
    "python -m benchmarks.memory_changes",
)  # fmt: skip
EXPANDABLE_LEFT = Number(
    0.01, 0.0, 0.04, "", "assumed",
    "Reserved and not allocated at the peak, as a share of what is allocated, with expandable segments: these are "
    "mapped page by page.",
)  # fmt: skip
FIT_SPREAD = Number(
    0.03, 0.0, 0.06, "", "assumed",
    "By how much a peak predicted from two measured batches may be off, as a share of what grows with the batch: "
    "allocators round, and kernels take workspaces.",
)  # fmt: skip
FIT_UNSEEN_LENGTH = Number(
    0.5, 0.0, 1.0, "", "assumed",
    "The same per doubling of the length, and for its half, where no other length could be measured: scores of "
    "attention grow with its square.",
)  # fmt: skip
