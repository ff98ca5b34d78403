"""What torch.compile and CUDA graphs make of a step."""

from __future__ import annotations

from gpuprof.calibration.number import Number

_TIMED = (
    "tests/data/pairs/tiny.json.gz",
    "tests/data/pairs/dense.json.gz",
    "tests/data/pairs/mid.json.gz",
    "scenarios/small_batch/recording",
    "shared/traces/h200/tiny_lora_small_batch.json.gz",
)
_BOTH_WAYS = ("tests/data/pairs/tiny.json.gz", "tests/data/pairs/tiny.compile.json.gz")
_REFIT = "python -m benchmarks.calibrate compile"

HOST = Number(
    0.95, 0.8, 1.2, "", "fitted",
    "CPU time of a launch in a compiled graph, relative to the op's own time in eager mode. Chosen so that the "
    "measured steps of compiled LoRA models come out, which alone say 0.82, 1.12, 1.14 and 1.15.",
    _TIMED, _REFIT,
)  # fmt: skip
LASTING_NS = Number(
    5e6, 5e6, 20e6, "ns", "measured",
    "Longest uninterrupted host work that may only dispatch an op; what takes longer prepares indices, waits for a "
    "lock or runs another library. In 32 of the 34 recordings to which numbers may be fitted the longest takes 0.4 to "
    "4.9 ms, in two of several GPUs 12 and 40 ms.",
    (*_TIMED[:3], "scenarios/padding/recording", "scenarios/small_batch/recording", "scenarios/tf32_off/recording"),
)  # fmt: skip
PASS_NS = Number(
    800_000.0, 300_000.0, 1_500_000.0, "ns", "measured",
    "Guards, flattening and saving of tensors, once for each forward and each backward pass: what an 8-layer LoRA "
    "step of 5.3 to 5.9 ms with CUDA graphs leaves for them on an H200's host, where the rest of its CPU work takes "
    "WARM of its time. Both ends are guesses for models of few and of many tensors.",
    ("tests/data/pairs/tiny.json.gz",), "python -m benchmarks.compile_prices",
)  # fmt: skip
FUSED = Number(
    0.65, 0.4, 1.2, "", "measured",
    "Time of the kernels that a chain is fused into, relative to the chain's longest kernel. Three models on an H200: "
    "0.4 to 0.7; less certain where norms run over long rows.",
    _BOTH_WAYS,
)  # fmt: skip
CHAINS_LEFT = Number(
    0.5, 0.35, 0.7, "", "measured",
    "Fused kernels per chain of neighbouring ones: Inductor also fuses what is not adjacent. 8 LoRA layers on an "
    "H200: 122 kernels for 232 chains. One model; the interval is a guess.",
)  # fmt: skip
ACROSS = Number(
    2.0, 1.0, 3.0, "", "assumed",
    "Kernels in compiled code of a reduction across rows beyond the one that its neighbours are fused into: means of a "
    "batch norm, gradients of biases and of a norm's weights take two stages before what uses them can begin.",
)  # fmt: skip
AGAIN = Number(
    1.0, 0.0, 1.0, "", "assumed",
    "How often the means of a batch or group norm let a chain's data go through memory once more, since what uses them "
    "can only begin once all rows are read; at best the rows are still in the L2 cache.",
)  # fmt: skip
REST = Number(
    1.05, 1.0, 1.15, "", "fitted",
    "Time of matrix multiplications in compiled code, relative to eager code: 0, 2 and 11 % longer in three models on "
    "an H200, for reasons that are not known. One of the three is kept; all of its matrix multiplications together "
    "take 5 % less once compiled.",
    _BOTH_WAYS, _REFIT,
)  # fmt: skip
ATTENTION = Number(
    1.8, 1.0, 3.2, "", "fitted",
    "The same for attention without a mask: the same cuDNN kernels took 1.0, 1.6 and 3.5 times as long on an H200 "
    "for sequences of 128, 512 and 2048, probably because transformers cannot leave a causal mask out while Dynamo "
    "traces. The shortest of the three is kept.",
    _BOTH_WAYS, _REFIT,
)  # fmt: skip
LAUNCHED = Number(
    0.0, 0.0, 0.15, "", "assumed",
    "Share of the launches that the host still makes one by one where some part cannot be captured in a CUDA graph: "
    "none, and at worst one of seven.",
)  # fmt: skip
WARM = Number(
    0.75, 0.63, 0.9, "", "measured",
    "CPU time of what stays in a step (guards, autograd, the optimizer, Python) once CUDA graphs launch its passes, "
    "relative to before: the code of several hundred launches takes the caches from it. The same backward pass and "
    "optimizer step of 99 tensors on a CPU (torch 2.13, with other processes), alone relative to after eager passes: "
    "0.79 to 0.98 after 1 block, 0.69 to 0.85 after 2, 0.66 to 0.75 after 4 and 8. Steps with graphs have other code, "
    "too, about as much as one block's.",
    (), "python -m benchmarks.warm_caches",
)  # fmt: skip
NEXT_NS = Number(
    420.0, 400.0, 600.0, "ns", "measured",
    "From one kernel of a CUDA graph to the next: the median of two recordings of an H200, whose middle half is 0.4 "
    "to 0.6 µs.",
    ("tests/data/pairs/tiny.graphs.json.gz",),
)  # fmt: skip
GRAPH_NS = Number(
    150_000.0, 100_000.0, 200_000.0, "ns", "measured",
    "Launching a CUDA graph and checking its inputs: graphs of 314 to 594 nodes took 0.1 to 0.2 ms on an H200's host.",
    ("tests/data/pairs/tiny.graphs.json.gz",),
)  # fmt: skip
TIME_S = Number(
    20.0, 12.0, 30.0, "s", "measured",
    "Compiling a model with a cold cache, on top of what each kernel takes. Five models on an H200's host with 16 "
    "cores (torch 2.11) took 21, 33 and 48 s (Llama with 4, 12 and 24 layers: 544, 1,520 and 2,984 kernels a pass), "
    "40 s (BERT, 704 kernels) and 40 s (ResNet-50, 721 kernels).",
    (), "python -m benchmarks.compile_time",
)  # fmt: skip
TIME_PER_KERNEL_S = Number(
    0.0125, 0.008, 0.02, "s", "measured",
    "The same for each kernel that one eager forward and backward pass launches, in those five models.",
    (), "python -m benchmarks.compile_time",
)  # fmt: skip
TIME_SPREAD = Number(
    1.0, 0.7, 1.45, "", "measured",
    "Measured over estimated compile time: 0.78 to 1.39 in those five models; hosts differ.",
    (), "python -m benchmarks.compile_time",
)  # fmt: skip
TIME_DYNAMIC = Number(
    1.7, 1.1, 2.1, "", "measured",
    "Time of compiling again, with dynamic lengths, when a second sequence length arrives, relative to the first "
    "compilation: 1.1, 1.8 and 2.1 in the three Llama models. A third length costs nothing.",
    (), "python -m benchmarks.compile_time",
)  # fmt: skip
REMOVABLE = Number(
    0.7, 0.4, 0.9, "", "assumed",
    "Probability that a model can be compiled as a whole once the waits in its passes are gone, where all of them read "
    "values: a condition that a recording does not show.",
)  # fmt: skip
BY_HAND = Number(
    0.7, 0.4, 0.9, "", "assumed",
    "Probability that a program which differentiates gradients can capture its passes in a CUDA graph: its tensors "
    "have to keep their places, and nothing in the passes may wait for the GPU.",
)  # fmt: skip
SIZED = Number(
    0.55, 0.3, 0.8, "", "assumed",
    "The same where some of the waits are for the size of a result, which needs another computation.",
)  # fmt: skip
BUCKETED = Number(
    0.8, 0.5, 0.95, "", "assumed",
    "Probability that batches of different lengths can be padded to a few lengths, and the passes captured for each.",
)  # fmt: skip
VARYING = Number(
    0.8, 0.5, 1.0, "", "assumed",
    "By how much less likely a chain that ends in torch.compile works where the shapes of batches vary, too.",
)  # fmt: skip
