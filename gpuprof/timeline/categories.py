"""What a kernel does: the launching op's name decides first, the kernel's own name second.

An op name is a contract of the framework (`aten::mm` is a matmul whatever cuBLAS calls its kernel), kernel
names change with every library release. Names that say more than a general op (flash attention inside a compiled
region, NCCL under any op) go before the op.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from gpuprof.tracefile.trace import KERNEL, MEMCPY, U8, Trace
from gpuprof.units import Convention, Entries

MOST_NAMES_KEPT: Convention[Entries] = 1 << 13
"""Names whose category is cached; a recording has some hundreds of kernels and of ops that launch them."""

CATEGORIES = (
    "gemm",
    "grouped_gemm",
    "attention",
    "norm",
    "softmax",
    "elementwise",
    "cast/copy",
    "reduction",
    "gather/scatter/index",
    "embedding",
    "loss",
    "dequantize",
    "optimizer",
    "rope",
    "dropout",
    "triton_fused",
    "communication",
    "memcpy",
    "memset",
    "other",
)
_CODE = {name: code for code, name in enumerate(CATEGORIES)}
COMMUNICATION, MEMCPY_CATEGORY, MEMSET_CATEGORY = _CODE["communication"], _CODE["memcpy"], _CODE["memset"]
TENSOR_CATEGORIES = ("gemm", "grouped_gemm", "attention")
"""Work that tensor cores do; everything else is limited by memory or latency."""

Rules = tuple[tuple[str, re.Pattern[str]], ...]


def _rules(*pairs: tuple[str, str]) -> Rules:
    return tuple((category, re.compile(pattern, re.IGNORECASE)) for category, pattern in pairs)


# Kernel names that decide under any op.
SURE: Rules = _rules(
    # Inductor names its kernels after every op that is fused in them, and some of those it only prepares for.
    ("triton_fused", r"^triton_(poi|red|per|for)_"),
    # NCCL and RCCL; DeepEP's dispatch/combine, custom all-reduce of vLLM, NVSHMEM, symmetric memory.
    (
        "communication",
        r"nccl|rccl|nvshmem|deep_?ep\b|cross_device_reduce|(one|two)_shot_all_?reduce|all_?reduce_kernel"
        r"|multimem_|symm_mem|intranode::|internode(_ll)?::|all_to_all_v|allgather_kernel|reduce_scatter_kernel",
    ),
    ("dequantize", r"dequant|gemv_4bit|nf4|kgemm_4bit"),
    # Into the cache of keys and values: vLLM, SGLang, FlashInfer.
    (
        "gather/scatter/index",
        r"reshape_and_cache|concat_and_cache|store_(kv_?)?cache|set_(kv|mla)_buffer|copy_page_ind",
    ),
    (
        "attention",
        r"flash|fmha|sdpa|paged_attention|attention(?!.*(softmax|mask_fill))|attn_fwd|attn_bwd|sage_?(attn_)?(fwd|bwd)"
        r"|merge_attn_states|Batch(Prefill|Decode)With|mla_(a8w8|fwd|bwd|decode|prefill|reduce)"
        r"|cudnn::fusion::(compute_dot_do_o|convert_dq)",
    ),
    ("rope", r"rope_|rotary"),
    ("gemm", r"^triton_(tem|mm)_\w*(mm|conv)"),
    # What a convolution does before and after its matmuls: cuDNN, MIOpen.
    (
        "cast/copy",
        r"batched_transpose|nchwToNhwc|nhwcToNchw|NCHW2CNHW|CNHW2NCHW|tensorTransform|SubTensorOpWith(Cast|Sub)"
        r"|Im2(d2)?Col|Col2Im(2d)?",
    ),
    ("elementwise", r"SubTensorOpWithScalar|scalePackedTensor"),
)

OPS: Rules = _rules(
    ("communication", r"^(c10d|_c10d_functional|c10d_functional)::|^nccl:|record_param_comms"),
    (
        "optimizer",
        r"_fused_(adam|adamw|sgd|adagrad)_|^optimizer\.step|multi_tensor_(adam|sgd|lamb)|adagrad_Op|optim(izer)?_\d+bit",
    ),
    ("grouped_gemm", r"_grouped_mm|grouped_gemm|group_gemm|moe_gemm"),
    ("attention", r"attention|flash_attn|xformers|aten::_efficient_attention"),
    (
        "gemm",
        r"^aten::(mm|addmm_?|bmm|baddbmm_?|matmul|linear|_scaled_mm|addbmm|addmv_?|mv|dot|vdot|einsum|_addmm_activation)$"
        r"|^aten::(\w*_)?conv(?!ert)|_convolution|unsloth::addmm|cutlass|aten::(_weight_int\w+|_int_mm)|::scaled_mm",
    ),
    ("dequantize", r"dequant|bitsandbytes::(dequant|gemv)"),
    (
        "loss",
        r"cross_entropy|nll_loss|mse_loss|l1_loss|bce|kl_div|fused_linear_ce|ctc_loss|huber|binary_cross_entropy",
    ),
    ("softmax", r"softmax"),
    ("norm", r"layer_?norm|rms_?norm|group_norm|batch_norm|instance_norm|_norm_(forward|backward)"),
    ("rope", r"rope|rotary"),
    ("dropout", r"dropout|bernoulli"),
    ("embedding", r"embedding"),
    (
        "gather/scatter/index",
        r"^aten::(index|_index|gather|scatter|masked_(select|scatter)|nonzero|select_backward|slice_backward|slice_scatter"
        r"|take|put|_unsafe_index|topk|sort|argsort|unique|searchsorted|bucketize|one_hot|histc|bincount|where|"
        r"value_selecting_reduction_backward|repeat_interleave|roll|flip)|permute_2D_sparse|cumsum",
    ),
    (
        "cast/copy",
        r"^aten::(copy_|_to_copy|to|clone|contiguous|cat|stack|_foreach_copy_|pin_memory|_pin_memory|constant_pad_nd|pad"
        r"|_local_scalar_dense|item|split_with_sizes_copy|_foreach_copy|narrow_copy|expand_copy|new_tensor|repeat)$",
    ),
    (
        "reduction",
        r"^aten::(sum|mean|max|min|amax|amin|prod|std|var|var_mean|std_mean|norm|linalg_vector_norm|linalg_norm"
        r"|_foreach_norm|all|any|argmax|argmin|logsumexp|count_nonzero|aminmax|median|mode)$",
    ),
    ("triton_fused", r"^triton_(poi|red|per|for|tem|mm|spl)_"),
    (
        "elementwise",
        r"^aten::_?(foreach_)?(add|sub|rsub|mul|div|pow|sqrt|rsqrt|exp2?|expm1|log|neg|abs|sign|sgn|reciprocal|clamp|relu|gelu|silu"
        r"|sigmoid|tanh|sin|cos|erf|lerp|addcmul|addcdiv|fill|zero|ones|zeros|full|arange|eq|ne|lt|le|gt|ge|logical|bitwise"
        r"|maximum|minimum|masked_fill|threshold|round|floor|ceil|isnan|isinf|random|normal|uniform|randint|elu|leaky_relu"
        r"|hardtanh|softplus|mish|glu|tril|triu|linspace)(_|$)",
    ),
)

KERNELS: Rules = _rules(
    ("triton_fused", r"^triton_"),
    ("optimizer", r"adam|lamb_|sgd_|adagrad|optimizer"),
    # Of experts: CUTLASS, DeepGEMM, TensorRT-LLM (bmm_*_dynBatch), Triton kernels (matmul_ogs), vLLM, CK, AITER.
    (
        "grouped_gemm",
        r"group(ed)?_?_?(gemm|mm)|moe_?gemm|gemm_?moe|GemmGrouped|GroupProblemShape|^bmm_.*_dynBatch|fused_moe_kernel"
        r"|matmul_ogs|ck_moe_stage|fmoe_|MoeFlatmm|marlin_moe",
    ),
    (
        "gemm",
        # Types of CUTLASS (cutlass::bfloat16_t) are those of other kernels' templates, too.
        r"(?<!fb)gemm|^bmm_|hipblaslt|flatmm|marlin|machete|nvjet|cutlass(?!::\w*float\w*_t|::half_t)|wgmma|cublas|xmma|s\d+gemm|Cijk_|splitKreduce|dot_kernel|conv(?!ert)|wgrad|dgrad|winograd"
        r"|implicit_con|scudnn|miopen|gemv|gcnAsm|igemm|matmul|_mm_|cask",
    ),
    ("softmax", r"softmax"),
    ("norm", r"layer_?norm|rms_?norm|batch_?norm|group_norm|bn_(bw|fw)|rowwisemoments|gammabeta"),
    (
        "elementwise",
        r"act_and_mul|activationKernel|swiglu|geglu|silu_(and_)?mul|gelu_(and_)?mul|_d?fg_kernel|_scale_kernel"
        r"|[sdch]axpy",
    ),
    ("loss", r"nll_loss|cross_entropy|mse_loss"),
    ("dropout", r"dropout|bernoulli"),
    ("embedding", r"embedding|compute_grad_weight|krn_partial|num_of_partial_segments"),
    (
        "gather/scatter/index",
        r"index|indices|gather|scatter|sort|topk|nonzero|masked_|DeviceSelect|DeviceScan|DeviceCompact|RadixSort|unique|where|scan_"
        r"|permute_|recat_|routing|finalize(MoeRouting|Kernel)|align_block|bitmatrix|to_dense_repr|token_ids|position_kernel"
        r"|upsample|interpolat|bucketize|offsets_range",
    ),
    (
        "cast/copy",
        r"copy_kernel|CatArray|chunk_cat|split_with_sizes_copy|Memcpy|LoadWithCast|bfloat16_copy|transpose_kernel|quant|qparam|_to_float_|_hfp8",
    ),
    ("reduction", r"reduce_kernel|reduce|DeviceReduce|norm_kernel|lpnorm|moe_sum|_pool|pooling"),
    (
        "elementwise",
        r"elementwise|pointwise|multi_tensor_apply|Functor|CUDAFunctor|fill_|arange|distribution_",
    ),
)


def categorize(op: str | None, kernel: str) -> str:
    """Category of one kernel under one op."""
    return _by_sure_name(kernel) or (_by_op(op) if op else None) or _by_kernel(kernel) or "other"


def _first(rules: Rules) -> Callable[[str], str | None]:
    """The category of the first rule that a name passes; cached, as a kernel's name comes under several ops."""

    @lru_cache(maxsize=MOST_NAMES_KEPT)
    def category(name: str) -> str | None:
        return next((category for category, pattern in rules if pattern.search(name)), None)

    return category


_by_sure_name, _by_op, _by_kernel = map(_first, (SURE, OPS, KERNELS))


def categories(trace: Trace, op: np.ndarray) -> U8:
    """Category code (index into CATEGORIES) per GPU event; `op` holds each one's op row or -1."""
    gpu, ops = trace.gpu, trace.ops
    codes = np.full(len(gpu), MEMSET_CATEGORY, np.uint8)
    codes[gpu.kind == MEMCPY] = MEMCPY_CATEGORY
    kernels = np.flatnonzero(gpu.kind == KERNEL)
    op_name = np.where(op[kernels] >= 0, ops.name[op[kernels]] if len(ops) else -1, -1).astype(np.int64)
    pairs = (op_name + 1) * (len(trace.strings) + 1) + gpu.name[kernels]
    distinct, inverse = np.unique(pairs, return_inverse=True)
    found = np.empty(len(distinct), np.uint8)
    for i, pair in enumerate(distinct.tolist()):
        op_id, kernel_id = divmod(pair, len(trace.strings) + 1)
        found[i] = _CODE[categorize(trace.text(op_id - 1), trace.strings[kernel_id])]
    codes[kernels] = found[inverse]
    return codes
