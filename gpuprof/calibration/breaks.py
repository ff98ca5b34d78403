"""What a graph break costs, and what is left of it once it is removed."""

from __future__ import annotations

from gpuprof.calibration.number import Number

STAYS = Number(
    0.1, 0.0, 0.45, "", "measured",
    "Part of the CPU work around compiled graphs (guards, and the Python in between) that stays in a model that is not "
    "compiled: assumed to be what stays if graphs are joined. Models of 8 and 16 blocks with two kinds of breaks on a "
    "CPU (torch 2.13), timed with and without them: -0.3 to 0.35, on a machine that others used too.",
)  # fmt: skip
FUSED = Number(
    0.5, 0.0, 1.0, "", "assumed",
    "Time of GPU work launched between two graphs once they are joined, relative to before: it disappears with the "
    "check that it was for or is fused into a neighbour, or stays a kernel of its own.",
)  # fmt: skip
CALL_OPS = Number(
    33.0, 15.0, 60.0, "ops", "measured",
    "What a call of a compiled graph without ops costs the CPU around its generated code, forward and backward, in "
    "units of what each op of the graph adds (inputs, guards, saved tensors). This fixed part is saved if the graph is "
    "joined with another; the rest stays. Residual parts of 5 ops on a CPU that other processes used, too (torch "
    "2.13): 17, 33 and 38 in three runs of graphs of 5 to 40 ops.",
    (), "python -m benchmarks.graph_calls",
)  # fmt: skip
FUSED_LAUNCHES = Number(
    2.5, 1.2, 4.0, "launches", "fitted",
    "Launches that joining two compiled graphs saves inside the second one's generated code in each pass, where "
    "kernels are fused across the break; what the code does before its first launch and after its last is not "
    "included. Two programs limited by the CPU on an H100, without their 15 and 17 breaks a step: 2.5 fits one, 3 the "
    "other.",
    ("scenarios/programs/breaks_random/recording", "scenarios/programs/breaks_disabled/recording"),
    "python -m benchmarks.compile_prices",
)  # fmt: skip
COMPILES = Number(
    0.75, 0.5, 0.9, "", "assumed",
    "Probability that a model compiles as a whole once the break is gone for which Dynamo gave it up.",
)  # fmt: skip
CAPTURABLE = Number(
    0.8, 0.5, 0.95, "", "assumed",
    "Probability that CUDA graphs capture a compiled model once nothing breaks its graph.",
)  # fmt: skip
CALL_NS = Number(
    130_000.0, 60_000.0, 200_000.0, "ns", "measured",
    "CPU time of one more call of a compiled graph in one pass: guards, flattening and autograd around it, 75 µs, and "
    "what entering its generated code costs, 65 µs, on an H100's host where a launch of such code takes 19 µs.",
    ("scenarios/programs/breaks_random/recording", "scenarios/programs/breaks_disabled/recording"),
)  # fmt: skip
WAKE_NS = Number(
    120_000.0, 75_000.0, 300_000.0, "ns", "measured",
    "From the training thread's last work in `backward()` to the first of autograd's thread, which has to be woken: 75 "
    "to 405 µs as recorded in 12 programs on hosts of H100s and H200s, 130 µs at the median. In a thirteenth, whose "
    "compiled code computes on the CPU in many threads, 2.7 and 2.9 ms in two of three steps.",
    ("scenarios/programs/breaks_random/recording", "scenarios/programs/breaks_disabled/recording",
     "scenarios/programs/breaks_numpy/recording"),
)  # fmt: skip
EAGER_OP = Number(
    2.8, 1.9, 3.9, "", "measured",
    "CPU time of an eager model's forward and backward passes for each op that its code calls, views included, in "
    "units of what a matrix multiplication takes the CPU itself: eager recordings of models without long functions "
    "of their own. A compiled model with 17 graph breaks a step, whose eager step was measured too, has 2.8.",
    (
        "scenarios/allocator_thrash/recording", "scenarios/checkpointing/recording",
        "scenarios/eager_attention/recording", "scenarios/fp32_adapters/recording",
        "scenarios/llama8b_cookbook/recording", "scenarios/optimizer_loop/recording",
        "scenarios/optimizer_memory/recording", "scenarios/padding/recording",
        "scenarios/parameter_syncs/recording", "scenarios/qwen3_8b_lora/recording",
        "scenarios/qwen3_8b_qlora/recording", "scenarios/small_batch/recording", "scenarios/tf32_off/recording",
        "scenarios/tinyllama_cookbook/recording", "scenarios/programs/breaks_random/recording",
    ),
)  # fmt: skip
EAGER_GPU = Number(
    4.0, 2.0, 8.0, "", "assumed",
    "Time of the eager kernels of elementwise ops, norms and reductions / that of the kernels that Inductor fuses them "
    "into: 8.0 in a small model with adapters, less where they are large.",
    ("tests/data/pairs/tiny.json.gz", "tests/data/pairs/tiny.compile.json.gz"),
)  # fmt: skip
