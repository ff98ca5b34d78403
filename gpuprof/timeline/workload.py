"""What a recording is of: training or inference, and what one of its iterations makes.

Training shows by a backward pass, an optimizer, or kernels of either. Inference is what has ops, or the marks of a
serving engine, and none of these, and recorded no gradients. Everything else is unknown and is treated as training.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpuprof.timeline.backward_threads import GRADIENT_KERNEL, OPTIMIZER_KERNEL
from gpuprof.timeline.categories import CATEGORIES, TENSOR_CATEGORIES
from gpuprof.timeline.phases import OPTIMIZER, HostPhases
from gpuprof.timeline.serving import Activity, activity_of, engine_of, is_iteration
from gpuprof.timeline.steps import AnalysedSteps
from gpuprof.timeline.unit import ITERATION, REQUEST, STEP, TOKEN, Unit
from gpuprof.tracefile.distinct import ordered
from gpuprof.tracefile.trace import ANNOTATION, I64, NO_TEXT, OP, U8, Trace
from gpuprof.units import Assumed, Ratio, Share

Kind = Literal["training", "inference", "unknown"]

_TRAINING_OP = re.compile(r"_backward(_|$)|Backward\d*$|^aten::_fused_(adamw?|sgd|adagrad)|^Optimizer\.")
_DECODE_KERNEL = re.compile(
    r"paged_?attention|single_query_cached_kv|masked_multihead_attention|BatchDecode|flash_fwd_splitkv"
    r"|decode_(attention|attn)|unified_attention_3d|mla_decode|flash_mla|fmha_decode",
    re.IGNORECASE,
)
"""Attention of one new token against a cache."""

MODEL_SHARE: Assumed[Share] = 0.05
"""Smallest share of GPU time in matrix multiplications and the like for ops to be those of a model."""
PASSES_OF_REQUEST: Assumed[Ratio] = 1.5
"""Passes over one token per step from which on a step is a request; a step of one pass is a token."""
_EMBEDDING = "aten::embedding"
_ATTENTION = "aten::scaled_dot_product_attention"
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Workload:
    """The kind of work, and what to call it."""

    kind: Kind
    activity: Activity | None = None
    """Of inference: one new token for each sequence, the prompts, both at once, denoising, or a pipeline's call."""
    unit: Unit = STEP
    """What one of the analysed steps is called."""
    batch: int | None = None
    """Sequences or requests of one iteration."""
    engine: str | None = None
    """What serves the model: vllm | sglang | tgi | tensorrt_llm | diffusers | transformers_pipeline |
    transformers_generate."""
    reason: str = ""
    """What in the recording shows it."""

    @property
    def is_inference(self) -> bool:
        return self.kind == "inference"

    @property
    def decodes(self) -> bool:
        """Whether each iteration makes one new token for each sequence."""
        return self.is_inference and self.activity == "decode"


def workload_of(trace: Trace, steps: AnalysedSteps, host: HostPhases, category: U8) -> Workload:
    """What the recording is of; `steps`: what is analysed of it; `category`: of every GPU event."""
    if sign := _sign_of_training(trace, host):
        return Workload("training", reason=sign)
    ranges = _texts(trace, trace.ops.name[trace.ops.kind == ANNOTATION])
    marks = [name for name in ranges if is_iteration(name)]
    engine = _engine(trace, ranges)
    decoding = _any(trace, trace.gpu.name, _DECODE_KERNEL)
    if not (marks or engine) and (why := _not_inference(trace, category)):
        return Workload("unknown", reason=why)
    activity, batch = activity_of(marks)
    passes, rows = _one_token_passes(trace, steps)
    if activity is None and (passes or decoding):
        activity, batch = "decode", rows
    if activity is None and engine == "diffusers":
        activity = "diffusion"
    if activity is None and engine == "transformers_pipeline":
        activity = "pipeline"
    unit = ITERATION
    if activity == "pipeline" or (activity == "diffusion" and not _within_sampling(steps)):
        unit = REQUEST
    elif activity == "decode" and not marks and engine not in ("vllm", "sglang", "tensorrt_llm", "tgi"):
        unit = REQUEST if passes > PASSES_OF_REQUEST else TOKEN
    return Workload("inference", activity, unit, batch, engine, _reason(marks, engine))


def _sign_of_training(trace: Trace, host: HostPhases) -> str:
    """What shows that a model is trained; empty if nothing does."""
    if len(host.backward):
        return "a backward pass was recorded"
    if np.any(host.op == OPTIMIZER):
        return "an optimizer's step was recorded"
    if _any(trace, trace.ops.name[trace.ops.kind == OP], _TRAINING_OP):
        return "ops of a backward pass or an optimizer were recorded"
    if any(_any(trace, trace.gpu.name, pattern) for pattern in (GRADIENT_KERNEL, OPTIMIZER_KERNEL)):
        return "kernels of a backward pass or an optimizer were recorded"
    return ""


def _not_inference(trace: Trace, category: U8) -> str:
    """Why a recording that no engine marks may be of something else than inference; empty if it is inference."""
    if np.any(trace.ops.sequence >= 0):
        return "only a forward pass was recorded, with gradients"
    if not np.any(trace.ops.kind == OP):
        return "no ops show what was computed"
    model = np.isin(category, [CATEGORIES.index(name) for name in TENSOR_CATEGORIES])
    ns = (trace.gpu.end_ns - trace.gpu.start_ns).clip(0).astype(np.float64)
    if ns[model].sum() > MODEL_SHARE * ns.sum():
        return ""
    return "little was recorded that a model multiplies"


def _reason(marks: list[str], engine: str | None) -> str:
    if marks:
        return f"a serving engine marks its iterations: {marks[0]}"
    if engine:
        return f"code of {engine.replace('_', ' ')} runs"
    return "no backward pass, no optimizer and no gradients were recorded"


def _one_token_passes(trace: Trace, steps: AnalysedSteps) -> tuple[float, int | None]:
    """(passes of one new token in a step, sequences of each), by what is embedded or attended; (0, None) if none."""
    ops, (low, high) = trace.ops, steps.window
    inside = (ops.kind == OP) & (ops.start_ns >= low) & (ops.start_ns < high) & (ops.dims != NO_TEXT)
    rows = np.flatnonzero(inside & trace.rows_named(ops.name, lambda text: text == _EMBEDDING))
    count, batch = 0, None
    for dims, many in zip(*np.unique(ops.dims[rows], return_counts=True), strict=True):
        shape = _shape(trace.text(int(dims)), 1)
        if _is_single(shape):
            count, batch = count + int(many), shape[0]
    if count:
        return count / len(steps.start_ns), batch
    for dims in np.unique(ops.dims[inside & trace.rows_named(ops.name, lambda text: text == _ATTENTION)]).tolist():
        query, keys = (_shape(trace.text(dims), at) for at in (0, 1))
        if len(query) == 4 and len(keys) == 4 and query[2] == 1 and keys[2] > 1:
            return 1.0, query[0]
    return 0.0, None


def single_token_embeddings(trace: Trace) -> I64:
    """Beginnings of the ops that embed one token of each sequence, in order, ns."""
    ops = trace.ops
    named = (ops.kind == OP) & (ops.dims != NO_TEXT) & trace.rows_named(ops.name, lambda text: text == _EMBEDDING)
    rows = np.flatnonzero(named)
    single = [int(dims) for dims in np.unique(ops.dims[rows]).tolist() if _is_single(_shape(trace.text(int(dims)), 1))]
    return ordered(ops.start_ns[rows[np.isin(ops.dims[rows], single)]])


def _is_single(tokens: tuple[int, ...]) -> bool:
    """Whether a matrix of tokens has one token per sequence."""
    return len(tokens) == 2 and tokens[1] == 1


def _shape(dims: str | None, at: int) -> tuple[int, ...]:
    """The shape of the argument at a place; empty if it has none."""
    texts = re.findall(r"\[([\d, ]*)\]", (dims or "")[1:-1])
    return tuple(int(one) for one in _NUMBER.findall(texts[at])) if at < len(texts) else ()


def _within_sampling(steps: AnalysedSteps) -> bool:
    """Whether the steps are those of the sampler, of which a request takes many."""
    return steps.source == "periodicity"


def _engine(trace: Trace, ranges: Iterable[str]) -> str | None:
    """What serves the model, by frames, ranges and ops."""
    return engine_of([*_texts(trace, trace.frames.name), *ranges, *_texts(trace, trace.ops.name)])


def _any(trace: Trace, names: np.ndarray, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(text) for text in _texts(trace, names))


def _texts(trace: Trace, names: np.ndarray) -> list[str]:
    """The distinct texts of a column of names."""
    return [trace.strings[i] for i in np.unique(names).tolist() if i >= 0]
