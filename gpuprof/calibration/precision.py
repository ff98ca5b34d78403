"""What narrower number formats save: FP8 in linear layers, with casts and scales around them; fp32 in place of fp64."""

from __future__ import annotations

from gpuprof.calibration.number import Number

RATIO = Number(
    0.56, 0.5, 0.68, "", "published",
    "Time of an FP8 matrix multiplication with one scale a tensor, relative to the same in bf16, beyond what each "
    "takes to fill and empty the GPU. Half by the datasheets (twice the rate on Hopper, Ada and Blackwell). torchao's "
    "README (float8, Performance, H100) measures a whole linear layer of M, K, N = 4096, 8192, 16384 at 1.39 times "
    "bf16, which leaves 0.54 after the traffic of its casts; power-limited GPUs reach less.",
)  # fmt: skip
RATIO_ROWS = Number(
    0.65, 0.55, 0.85, "", "assumed",
    "The same with a scale for each row: the kernels scale what they add up.",
)  # fmt: skip
CAST = Number(
    0.82, 0.5, 0.95, "", "measured",
    "Share of the memory bandwidth that casts and maxima of a tensor reach. torchao's roofline takes 0.92 for large "
    "inputs; with 0.82 a step of large weights and few tokens gains what was measured (1.05 to 1.06 times as fast).",
    ("scenarios/programs/fp8_few_tokens/recording",),
)  # fmt: skip
CAST_ROWS = Number(
    0.32, 0.2, 0.6, "", "measured",
    "The same with a scale for each row, where maxima are taken across rows: in the same program, 0.68 times as fast.",
    ("scenarios/programs/fp8_few_tokens/recording",),
)  # fmt: skip
KERNEL_NS = Number(
    2_000.0, 1_500.0, 4_000.0, "ns", "published",
    "Shortest time of a kernel on an H100, as torchao's roofline takes it: what maxima of small tensors take.",
)  # fmt: skip
LAUNCH = Number(
    0.7, 0.4, 1.2, "", "assumed",
    "CPU time of each further kernel of a compiled graph, relative to what the recorded ones take with all that is "
    "around them: those of casts have few arguments.",
)  # fmt: skip
LAUNCH_NS = Number(
    6_000.0, 3_000.0, 12_000.0, "ns", "assumed",
    "The CPU time of a launch where the recorded step is not compiled.",
)  # fmt: skip
COMPILED = Number(
    0.85, 0.5, 0.95, "", "assumed",
    "Probability that a model that runs eagerly can be compiled, which FP8 needs: its casts are not fused otherwise.",
)  # fmt: skip
FP64_LEFT = Number(
    0.55, 0.45, 0.75, "", "assumed",
    "Time of elementwise kernels and reductions in fp32, relative to the same in fp64: half the bytes, casts between "
    "fp64 and 16 bits 0.6 of them.",
)  # fmt: skip
PRECONDITIONER = Number(
    0.7, 0.5, 0.9, "", "assumed",
    "Probability that what an optimizer multiplies outside of an iteration needs no more than bf16: products of a "
    "gradient with a preconditioner or a basis do not, what builds the preconditioner may.",
)  # fmt: skip
