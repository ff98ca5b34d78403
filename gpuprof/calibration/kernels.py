"""How near kernels that a fix would put in place come to their roofs, and what they replace."""

from __future__ import annotations

from gpuprof.calibration.number import Number

_ATTENTION = (
    "scenarios/eager_attention/recording",
    "tests/data/pairs/eager_attention.json.gz",
    "tests/data/pairs/eager_attention_full.json.gz",
    "tests/data/pairs/combined.json.gz",
)
_ADAPTERS = ("scenarios/fp32_adapters/recording", "scenarios/fp32_adapters/fixed", "tests/data/pairs/dense.json.gz")
_OPTIMIZER = (
    "scenarios/optimizer_loop/recording",
    "scenarios/optimizer_memory/recording",
    "tests/data/pairs/optimizer.json.gz",
    "tests/data/pairs/combined.json.gz",
)
_FUSED_ROBOT = ("scenarios/cases/robot_policy/recording", "scenarios/cases/robot_policy/fixed")
_MATMULS = ("scenarios", "tests/data/pairs", "shared/traces/h200")
_REFIT = "python -m benchmarks.calibrate kernels"
_MATMUL_RATES = "python -m benchmarks.matmul_rates"

ATTENTION_FORWARD = Number(
    0.42, 0.25, 0.6, "", "fitted",
    "Share of the tensor ceiling that fused attention reaches forward: 0.43 recorded on an H200 with cuDNN at width "
    "64 and 2,048 keys, causal; FlashAttention-3 (Shah et al., 2024) reports up to 0.75 at width 128 and long "
    "sequences; with a mask as a tensor, or short sequences, half as much.",
    _ATTENTION, _REFIT,
)  # fmt: skip
ATTENTION_BACKWARD = Number(
    0.36, 0.2, 0.55, "", "fitted",
    "The same backward: 0.36 recorded, up to 0.6 reported.",
    _ATTENTION, _REFIT,
)  # fmt: skip
ATTENTION_MEMORY = Number(
    0.6, 0.5, 0.8, "", "measured",
    "Share of the memory ceiling that fused attention on short sequences reaches: 0.5 to 0.8 for reading and "
    "converting its inputs.",
)  # fmt: skip
ADAPTER_MATMUL_LEFT = Number(
    0.29, 0.22, 0.4, "", "fitted",
    "Time of an fp32 adapter's matrix multiplications in bf16, relative to fp32: 0.29 over all matrix multiplications "
    "of 8B widths on an H200 (0.22 to 0.36 each).",
    _ADAPTERS, _REFIT,
)  # fmt: skip
ADAPTER_SCALE_LEFT = Number(
    0.5, 0.45, 0.6, "", "fitted",
    "The same for its scalings, which move half the bytes: 0.50.",
    _ADAPTERS, _REFIT,
)  # fmt: skip
ADAPTER_SUM_LEFT = Number(
    0.4, 0.32, 0.6, "", "fitted",
    "The same for its additions, which no longer mix formats: 0.35.",
    _ADAPTERS, _REFIT,
)  # fmt: skip
QUANTISED_HOST_LEFT = Number(
    0.25, 0.0, 0.4, "", "assumed",
    "Share of the CPU work between a quantised layer's ops that the plain layer does as well, at worst.",
)  # fmt: skip
FUSED_HOST_LAUNCHES = Number(
    6.0, 4.5, 9.5, "launches", "measured",
    "CPU time of a fused call in one pass, an autograd function in Python around a Triton kernel, in units of a usual "
    "launch of the forward pass. Unsloth's RMSNorm takes 60 to 135 µs forward and about the same backward, where a "
    "usual launch takes 14 to 26: 5.2, 5.9 and 9.6 of them forward, 4.3, 4.8 and 7.9 backward.",
    (
        "tests/data/unsloth_llama1b.json.gz",
        "scenarios/qwen3_8b_unsloth/recording",
        "scenarios/qwen3_32b_unsloth/recording",
    ),
)  # fmt: skip
FUSED_MEMORY = Number(
    0.65, 0.45, 0.85, "", "measured",
    "Share of the memory ceiling that row-wise Triton kernels reach: 0.5 to 0.9 on long rows.",
    ("tests/data/unsloth_llama1b.json.gz",),
)  # fmt: skip
NORM_BACKWARD = Number(
    8.5, 3.5, 12.0, "passes", "fitted",
    "Time of a fused RMSNorm's backward pass, in passes over the activation at the rate of such kernels: it reads two, "
    "writes one and sums the weight's gradient, but one program for each SM goes through its rows one by one. "
    "Nine norms of 4,096 × 2,048 in bf16 on an H100: 9.4 where Liger's replaced them, 13 where torch's did.",
    ("scenarios/programs/norms_gates/recording",), "python -m benchmarks.compile_prices",
)  # fmt: skip
OPTIMIZER_GPU = Number(
    0.44, 0.33, 0.6, "", "fitted",
    "GPU time of a fused optimizer step, relative to one that reads the lists or parameters several times: AdamW in "
    "fp32, 219 tensors of 1.3 GB on an H200: 0.43 of foreach and 0.46 of a loop.",
    _OPTIMIZER, _REFIT,
)  # fmt: skip
OPTIMIZER_FOREACH_HOST = Number(
    0.2, 0.12, 0.4, "", "measured",
    "CPU time in ops, fused relative to foreach: 0.12, 0.19 and 0.39.",
    (*_OPTIMIZER, *_FUSED_ROBOT),
)  # fmt: skip
OPTIMIZER_FOREACH_PYTHON = Number(
    0.7, 0.55, 0.9, "", "measured",
    "Python's own time around the ops, fused relative to foreach, which groups the tensors of each list and computes "
    "bias corrections for each tensor: 0.59 with 191 tensors, 0.78 with 39.",
    (*_OPTIMIZER, *_FUSED_ROBOT),
)  # fmt: skip
OPTIMIZER_LOOP_HOST = Number(
    0.03, 0.02, 0.05, "", "measured",
    "CPU time in ops, fused relative to a loop over parameters: 0.03.",
    _OPTIMIZER,
)  # fmt: skip
OPTIMIZER_LOOP_PYTHON = Number(
    0.27, 0.2, 0.4, "", "measured",
    "Python's own time around the ops, fused relative to a loop: 0.27.",
    _OPTIMIZER,
)  # fmt: skip
GROUPS_LEFT = Number(
    2.0, 1.0, 4.0, "groups", "assumed",
    "Parameter groups that are left where groups of the same settings are one: weights that decay, and those that do "
    "not. For recordings that do not say how many differ.",
)  # fmt: skip
GROUPS_TENSORS = Number(
    0.1, 0.03, 0.3, "", "assumed",
    "Share of the CPU time of a step of many parameter groups that goes to each tensor, and stays with few groups; "
    "the rest is spent for each group.",
)  # fmt: skip
GROUPS_ODDS = Number(
    0.7, 0.5, 0.9, "", "assumed",
    "Probability that many parameter groups have few different settings, where the recording does not say: one group "
    "for each parameter, made by a loop over named_parameters.",
)  # fmt: skip
OTHER_OPTIMIZER_ODDS = Number(
    0.8, 0.6, 0.95, "", "assumed",
    "Probability that AdamW can take the place of an optimizer that has no fused kernel: most of these are variants of "
    "it that save memory or choose a learning rate.",
)  # fmt: skip
TF32_TENSOR = Number(
    0.65, 0.45, 0.85, "", "measured",
    "Share of the TF32 tensor ceiling that matrix multiplications reach: 0.41 to 0.94 on an H200 with cuBLAS 13,"
    " 0.65 over "
    "all of a step.",
    ("scenarios/tf32_off/recording", "tests/data/pairs/tf32.json.gz"), _REFIT,
)  # fmt: skip
TF32_MEMORY = Number(
    0.7, 0.5, 0.85, "", "measured",
    "Share of the memory ceiling that they reach.",
    ("scenarios/tf32_off/recording", "tests/data/pairs/tf32.json.gz"),
)  # fmt: skip
MATMUL_ADDED_NS = Number(
    4_000.0, 3_000.0, 5_000.0, "ns", "fitted",
    "What a matrix multiplication in bf16 takes in addition to the time of its FLOPs and bytes: filling and emptying "
    "the chip. 2,877 shapes of 52 recordings on H200s, each recording counted alike; the time of all of a recording's "
    "is 0.94 to 1.05 of what is computed so, and 0.93 to 1.05 where the numbers are fitted without that recording.",
    _MATMULS, _MATMUL_RATES,
)  # fmt: skip
MATMUL_TENSOR = Number(
    1.06, 0.96, 1.1, "", "fitted",
    "Share of the bf16 tensor ceiling, as large matrix multiplications sustain it, that they reach apart from that: "
    "short ones run at higher clocks.",
    _MATMULS, _MATMUL_RATES,
)  # fmt: skip
MATMUL_MEMORY = Number(
    0.84, 0.75, 0.95, "", "fitted",
    "Share of the memory ceiling that they reach; FLOPs and bytes add up as squares.",
    _MATMULS, _MATMUL_RATES,
)  # fmt: skip
MATMUL_SCATTER = Number(
    0.99, 0.92, 1.09, "", "fitted",
    "Their time over the time computed in this way, if less than half of it is MATMUL_ADDED_NS: median, and ends of "
    "the middle 80 %, by time.",
    _MATMULS, _MATMUL_RATES,
)  # fmt: skip
MATMUL_SMALL_SCATTER = Number(
    0.99, 0.80, 1.25, "", "fitted",
    "The same for small ones, of whose time MATMUL_ADDED_NS is the larger part.",
    _MATMULS, _MATMUL_RATES,
)  # fmt: skip
BF16_MEMORY = Number(
    0.7, 0.5, 0.85, "", "assumed",
    "Share of the memory ceiling that the casts of autocast reach.",
)  # fmt: skip
AUTOCAST_FP32_REACHED = Number(
    0.85, 0.65, 1.0, "", "assumed",
    "Share of the fp32 ceiling that a matrix multiplication or convolution of fp32 operands reaches on a GPU without "
    "TF32, where its FLOPs do not follow from what was recorded (the stride of a convolution is missing).",
)  # fmt: skip
AUTOCAST_CASTS = Number(
    1.3, 0.7, 2.0, "", "assumed",
    "Launches of casts that autocast adds for each matrix multiplication: of its input, weights and bias in the "
    "forward pass, of their gradients in the backward pass.",
)  # fmt: skip
AUTOCAST_CAST_OPERANDS = Number(
    0.67, 0.2, 1.33, "", "assumed",
    "Operands that these casts read, for each matrix multiplication. A layer has three, forward and backward: its "
    "weights and their gradient are cast, its input and that one's gradient only if the op before is not a matrix "
    "multiplication; that is 2 to 4 casts of operands where weights are as large as inputs, and 0 to 2 where they are "
    "small.",
)  # fmt: skip
AUTOCAST_HALVED = Number(
    0.5, 0.0, 1.0, "", "assumed",
    "Share of the traffic of fp32 elementwise ops and copies in the model that is of half the bytes under autocast: "
    "what follows a matrix multiplication or a convolution is, what follows a norm or a loss, or adds to a residual "
    "stream in fp32, is not.",
)  # fmt: skip
LIGER_GRADIENT_BYTES = Number(
    4.0, 2.0, 14.0, "bytes", "assumed",
    "Traffic for each weight of the output layer and chunk in Liger's fused linear cross entropy, to add the chunk's "
    "gradient, the matmul's own output not included: its sum is read and written inside the matmul since Liger 0.8.3 "
    "(`torch.addmm` with `out=`); before, 12 to 18 for a cast and a sum in fp32.",
)  # fmt: skip
LABELLED_ROWS = Number(
    0.0, 0.0, 0.15, "", "assumed",
    "Share of the time of logits without a label that stays where only rows with a label are multiplied: finding and "
    "gathering them.",
)  # fmt: skip
PLAIN_LORA_ODDS = Number(
    0.75, 0.5, 0.9, "", "assumed",
    "Probability that plain LoRA trains as well as DoRA, which its authors find better at low ranks above all.",
)  # fmt: skip
NO_DROPOUT_ODDS = Number(
    0.85, 0.6, 0.95, "", "assumed",
    "Probability that adapters need no dropout: few weights on much data hardly overfit.",
)  # fmt: skip
MERGING = Number(
    4.0, 2.0, 10.0, "", "assumed",
    "Time of merging adapters into the weights and of taking them out again, over that of the adapters in one call on "
    "prompts: a few launches for each weight, and passes over all weights.",
)  # fmt: skip
MERGED_ODDS = Number(
    0.8, 0.5, 0.95, "", "assumed",
    "Probability that adapters can be merged while text is generated: that weights have a format in which the sum "
    "keeps the adapters, and that nothing else reads the adapters in between.",
)  # fmt: skip
TOKEN_ROWS_ODDS = Number(
    0.7, 0.4, 0.9, "", "assumed",
    "Probability that whole embeddings need not be trained next to adapters: for a few new tokens their rows are "
    "enough, a new language needs them all.",
)  # fmt: skip
FEWER_ADAPTERS_ODDS = Number(
    0.6, 0.4, 0.8, "", "assumed",
    "Probability that adapters on queries and values are enough, as in the first paper on LoRA; later ones prefer all "
    "linear layers.",
)  # fmt: skip
UNSEEN_LABELLED = Number(
    0.5, 0.2, 0.75, "", "assumed",
    "Share of tokens with a label where some have none and no labels were seen: answers of instructions, next to "
    "prompts and padding.",
)  # fmt: skip
UNSEEN_ODDS = Number(
    0.55, 0.4, 0.8, "", "assumed",
    "Probability that many tokens have no label where no labels were seen. In pretraining all have one.",
)  # fmt: skip
ALIGNED_LEFT = Number(
    1.05, 1.0, 2.0, "", "assumed",
    "Time of matrix multiplications whose sizes are rounded up to multiples of 64, relative to what those of their "
    "size usually take.",
)  # fmt: skip
ALIGNED_ODDS = Number(
    0.85, 0.6, 0.95, "", "assumed",
    "Probability that matrix multiplications with a size that is not a multiple of 8, which take longer than nine of "
    "ten of their kind, do so for that size.",
)  # fmt: skip
EXPANDED_LEFT = Number(
    1.5, 1.0, 4.0, "", "assumed",
    "Time of a matrix multiplication in place of an elementwise product that is summed up, relative to what one of "
    "its size should take: operands may have to be laid out first.",
)  # fmt: skip
EXPANDED_ODDS = Number(
    0.8, 0.6, 0.95, "", "assumed",
    "Probability that an expanded product whose sum follows can be written as a matrix multiplication: ops are "
    "recorded without their tensors, so another op may use the result, too.",
)  # fmt: skip
UNMASKED_LEFT = Number(
    0.7, 0.55, 0.9, "", "assumed",
    "Time of fused attention over whole rows without a mask, relative to the same kernel, or a slower one, with a mask "
    "as a tensor: it loads and adds a value for every score. Of the one program that was measured about 0.65 is left.",
    ("scenarios/programs/mask_of_ones/recording",),
)  # fmt: skip
NEEDLESS_MASK_ODDS = Number(
    0.65, 0.4, 0.8, "", "assumed",
    "Probability that a mask over all pairs of tokens, common to all heads, hides nothing where batches bring no mask "
    "and all have the same number of tokens: the model may make one that does.",
)  # fmt: skip
NEEDLESS_MASK_SEEN = Number(
    0.85, 0.6, 0.95, "", "assumed",
    "The same where the batches' own mask keeps all tokens.",
)  # fmt: skip
ONE_SAMPLE_MASK_ODDS = Number(
    0.8, 0.6, 0.95, "", "assumed",
    "Probability that a mask of a single sample, the same for all its queries and heads, hides nothing, or padding "
    "that can be cut off before the model.",
)  # fmt: skip
CAUSAL_LEFT = Number(
    0.5, 0.35, 0.85, "", "assumed",
    "Time of fused attention with is_causal=True, relative to the same with a tensor that hides later positions: half "
    "of the scores are computed, without loading and adding a value for each, and faster kernels take no mask.",
)  # fmt: skip
CAUSAL_MASK_ODDS = Number(
    0.75, 0.5, 0.9, "", "assumed",
    "Probability that a mask over all pairs of tokens, the same for all samples and heads, hides later positions and "
    "nothing else, or nothing: windows and prefixes look the same.",
)  # fmt: skip
LONG_FILTERS = Number(
    1.5, 1.0, 4.0, "", "assumed",
    "Time of convolutions along one axis after another with a fixed filter of each channel, relative to the share of "
    "operations that is left of the square one: long filters load more for each value that they compute.",
)  # fmt: skip
SPLIT_FILTER_ODDS = Number(
    0.85, 0.6, 0.95, "", "assumed",
    "Probability that a fixed square filter is a column times a row: blurs, boxes and the windows of SSIM are.",
)  # fmt: skip
TUNED_CONVOLUTIONS = Number(
    0.88, 0.65, 1.0, "", "assumed",
    "Time of convolutions with cudnn.benchmark, which tries all of the library's algorithms for each shape, relative "
    "to those that its heuristics choose.",
)  # fmt: skip
ANY_ALGORITHM_LEFT = Number(
    0.75, 0.4, 0.98, "", "assumed",
    "Time of convolutions without torch.backends.cudnn.deterministic, relative to the time with it: users report next "
    "to nothing for plain ones, and 2 to 10 times for transposed, dilated and three-dimensional ones.",
)  # fmt: skip
FUSED_LAUNCHES_ODDS = Number(
    0.8, 0.5, 0.95, "", "assumed",
    "Probability that fused norms, gates and rotary embeddings gain what the replay says in a step that waits for the "
    "CPU: what their calls cost there was measured in steps that the GPU limits.",
)  # fmt: skip
SEGMENT_MEMORY = Number(
    0.6, 0.4, 0.8, "", "assumed",
    "Share of the memory bandwidth at which sums over segments read rows and write sums: neighbouring threads read "
    "neighbouring elements, and segments of different lengths leave some of them waiting.",
)  # fmt: skip
SEGMENT_ODDS = Number(
    0.75, 0.5, 0.9, "", "assumed",
    "Probability that rows can be sorted by their index outside of the step: edges and sets come with the data, "
    "routers and clusters do not.",
)  # fmt: skip
SPARSE_LEFT = Number(
    0.3, 0.05, 0.8, "", "assumed",
    "Time of a multiplication by a sparse matrix, relative to the same as a dense one in float32, if most entries are "
    "zero: it reads rows of features at random places, with some tens of entries in a row.",
)  # fmt: skip
SPARSE_ODDS = Number(
    0.7, 0.4, 0.9, "", "assumed",
    "Probability that a large square matrix that is not trained, and that no op of the step makes, is mostly zeros: "
    "graphs are, kernels between all points are not.",
)  # fmt: skip
