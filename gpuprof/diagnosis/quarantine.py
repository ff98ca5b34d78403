"""Facts about single libraries or versions that a recording cannot show, each with its proof and the condition for
removing it.

Everything else that findings know is a rule about what was recorded. An entry here is read where it is needed; where a
library is a layer over another one, `Stack.builds_on` says so, and no list of libraries is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.units import Measured, Published, Version

COMPILES_ITSELF = frozenset({"unsloth"})
"""Kinds of programs (`run.stack.KINDS`) whose library compiles what it can, and has kernels of its own for the rest."""
SEPARATES_SAMPLES = frozenset({"unsloth"})
"""Kinds whose library keeps the samples of a row apart by itself, whatever attention the model takes."""
SAMPLE_BY_SAMPLE = frozenset({"unsloth"})
"""Kinds in which it does so one sample after another where attention is torch's own."""
READS_MASK = frozenset({"nn.Module: TransformerEncoder", "nn.Module: TransformerDecoder"})
"""Modules of torch.nn that read the values of their mask unless `is_causal` is passed. This breaks the graph, and
Dynamo does not resume inside torch's own code: all their layers stay eager."""
CUDNN_ATTENTION: Measured[tuple[Version, Version]] = (2, 11)
"""torch chooses cuDNN's attention by itself from this version on, or a little earlier (scenarios/recompiles, on an
H200); 2.9 still preferred flash attention."""
CUDNN_CAPABILITIES: Published[tuple[Version, ...]] = (9, 10)
"""Major compute capabilities on which it does so (`check_prefer_cudnn_attention` in torch's sdp_utils.cpp)."""


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """Why a fact is in quarantine."""

    proof: str
    """A recording or test of this repository, or the library's own code, that shows it."""
    until: str
    """What will make it wrong or unnecessary."""


ENTRIES = {
    "COMPILES_ITSELF": QuarantineEntry(
        "unsloth_zoo/compiler.py writes the model's modules with torch.compile into unsloth_compiled_cache",
        "recordings show it as compiled kernels in more than half of what can be fused (`detect/compiled_code.py`)",
    ),
    "SEPARATES_SAMPLES": QuarantineEntry(
        "unsloth's attention dispatch takes lengths with flash-attn, xformers or torch's own attention",
        "Stack.attentions of a run lists what the loaded model takes, unsloth's included",
    ),
    "SAMPLE_BY_SAMPLE": QuarantineEntry(
        "scenarios/qwen3_32b_unsloth: padding-free batches of 32 samples took 292 to 366 ms on an H200 where the padded"
        " ones took 458 and the work itself leaves 170 to 215",
        "unsloth uses torch's attention of nested tensors, or of variable lengths (torch.nn.attention.varlen)",
    ),
    "READS_MASK": QuarantineEntry(
        "tests/recorded/test_findings_recorded.py, and torch/nn/modules/transformer.py: _detect_is_causal_mask compares"
        " the mask with a causal one",
        "torch.nn.TransformerEncoder no longer reads its mask, or Dynamo resumes in torch.nn",
    ),
    "CUDNN_ATTENTION": QuarantineEntry(
        "scenarios/recompiles",
        "recordings of fp32 attention say which kernels bf16 would choose, or cuDNN keeps its plans across lengths",
    ),
    "CUDNN_CAPABILITIES": QuarantineEntry(
        "torch/csrc: check_prefer_cudnn_attention in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp",
        "as CUDNN_ATTENTION",
    ),
}  # fmt: skip
