"""Linear layers in FP8: faster matrix multiplications, minus the time of casts and scales at these shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as kernel_times
from gpuprof.calibration import precision as calibrated
from gpuprof.calibration.quoted import percent, us
from gpuprof.costs.fp8 import (
    DELAYED,
    DIMENSION_MULTIPLE,
    FORWARD,
    GRAD_WEIGHT,
    MXFP8,
    ROWWISE,
    TENSORWISE,
    Recipe,
    cast_kernels,
    cast_ns,
)
from gpuprof.costs.fp8 import layer_speedup as alone
from gpuprof.costs.hardware import Gpu, load_gpus
from gpuprof.diagnosis.detect.compiled.compile_time import compile_ns
from gpuprof.diagnosis.detect.compiled.compiled_passes import Passes, compiled, shapes_vary, whole_passes
from gpuprof.diagnosis.detect.compiled.generated_code import GENERATED
from gpuprof.diagnosis.detect.compiled_code import COMPILED_SHARE, compiled_share
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import LEAST_GAIN, Absent, Page, Proposal
from gpuprof.diagnosis.detect.gpu.linear_layers import LayerMatmul, layer_matmuls
from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import call, code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph, launcher_of
from gpuprof.tracefile.trace import F64, Mask
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

LEAST_TRAINED_SHARE: Assumed[Share] = 0.5
"""Smallest share of the layers that must train their weights."""
LEAST_MATMUL_SHARE: Assumed[Share] = 0.1
"""Smallest share of GPU time in such matrix multiplications for a proposal."""
BLACKWELL = "B200 SXM"
"""The GPU for which MXFP8 is projected."""

PAGE = Page(
    id="fp8",
    title="Linear layers could multiply in FP8",
    means="""
Tensor cores of Ada, Hopper and Blackwell multiply FP8 twice as fast as bf16. But each operand has to be scaled by its
largest value, cast, and laid out twice (once for the forward, once for the backward pass), which moves several bytes
per element and launches about ten more kernels per linear layer. Large layers over many tokens gain; small layers,
and layers with few tokens for the size of their weights, become slower.
""",
    detected="""
Matrix multiplications of linear layers in bf16 or fp16 that take at least a tenth of the GPU's time, on a GPU with
FP8. At least half of the layers must train their weights: adapters are too small for FP8. The three roles in training
(forward, gradient of the input, gradient of the weight) are inferred from the shapes. The output layer over a
vocabulary (30,000 columns or more) stays as it is, and so do layers whose sizes are not multiples of 16.
""",
    gain=f"""
Each matrix multiplication takes {us(kernel_times.MATMUL_ADDED_NS.value)} µs plus {calibrated.RATIO.value:g}
({calibrated.RATIO.low:g} to {calibrated.RATIO.high:g}) of the rest of its time; each cast kernel moves its bytes at
{percent(calibrated.CAST.value)} % ({percent(calibrated.CAST.low)} to {percent(calibrated.CAST.high)} %) of the memory
bandwidth, in at least {us(calibrated.KERNEL_NS.value)} µs; each added launch costs the CPU {calibrated.LAUNCH.value:g}
({calibrated.LAUNCH.low:g} to {calibrated.LAUNCH.high:g}) times a launch of this step's compiled code. Row-wise scales:
{calibrated.RATIO_ROWS.value:g}, and {percent(calibrated.CAST_ROWS.value)} % of the bandwidth. The figures come from
torchao's published H100 results and from one program on an H200, and are checked on others (docs/accuracy.md). Layers
that multiply the same input cast it once. MXFP8 on Blackwell is projected from rates and bytes, and marked as such: it
was not measured.
""",
    wrong="""
FP8 needs torch.compile: casts that are not fused take several times as long. Compare the losses: values round to 3
bits of mantissa (E4M3), or to 2 (E5M2, for gradients in some recipes). With FSDP the weights can be gathered in FP8,
which gains more. Under a power limit FP8 gains less.
""",
)


@dataclass(frozen=True, slots=True)
class _Cost:
    """Effect of FP8 on each node of the graph, CPU nodes included: its time × `factor` + `added_ns`."""

    factor: F64
    beyond_ns: F64
    """Part of a node's time that does not change."""
    added_ns: F64


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes torchao.float8 with one scale per tensor; for an eager model together with compiling."""
    layers = _layers(case)
    is_compiled = bool(layers) and compiled_share(case.timeline) >= COMPILED_SHARE
    found = None if is_compiled or not layers else whole_passes(case)
    if not layers or (found is None and not is_compiled):
        return
    if found is not None and not _worth_it(case, layers, found):
        return
    yield _proposal(case, layers, TENSORWISE, found)


def by_recipe(case: Analysis, recipe: Recipe) -> Proposal | None:
    """The proposal for another recipe on a compiled step; None if FP8 does not apply, or if the step is not
    compiled."""
    layers = _layers(case)
    if not layers or compiled_share(case.timeline) < COMPILED_SHARE:
        return None
    return _proposal(case, layers, recipe, None)


def _proposal(case: Analysis, layers: Sequence[LayerMatmul], recipe: Recipe, found: Passes | None) -> Proposal:
    """The layers in FP8 with a recipe; `found`: the eager passes that must be compiled first."""
    graph, is_compiled = case.graph, found is None
    ways = [_cost(case, layers, recipe, way) for way in range(3)]

    def to_fp8(way: int) -> Change:
        cost = ways[way]
        if found is None:
            return lambda graph: _made(graph, cost)
        before = compiled(found, way)
        return lambda graph: _made(before(graph), cost)

    kernels = float(graph.on_gpu.sum()) / graph.steps
    return Proposal(
        title="FP8 linear layers (torchao.float8)" if is_compiled else "torch.compile and FP8 linear layers",
        evidence=_evidence(case, layers, ways[1]),
        fix=code("from torchao.float8 import convert_to_float8_training\n")
        + call("convert_to_float8_training", ...)
        + "  # before torch.compile; leave out the output layer (module_filter_fn)",
        change=to_fp8(1),
        best=to_fp8(0),
        worst=to_fp8(2),
        changes="linear layers multiply in FP8 (3 bits of mantissa, 2 for gradients)",
        once_ns=(0.0, 0.0, 0.0) if is_compiled else compile_ns(kernels, shapes_vary(case)),
        claims=("matmul_types",) if is_compiled else ("matmul_types", "small_kernels"),
        needs="" if is_compiled else "the model can be compiled: casts are slow in eager mode",
        odds=1.0 if is_compiled else calibrated.COMPILED.value,
        parts=() if is_compiled else ("torch.compile", "FP8 linear layers"),
        last=not is_compiled,
    )


def _worth_it(case: Analysis, layers: Sequence[LayerMatmul], found: Passes) -> bool:
    """Whether FP8 gains more than compiling alone, if compiling must come first."""
    compiled_only = compiled(found, 1)(case.graph)
    return LEAST_GAIN * case.step_of(_made(compiled_only, _cost(case, layers, TENSORWISE, 1))) < case.step_of(
        compiled_only
    )


def _layers(case: Analysis) -> list[LayerMatmul]:
    """Matrix multiplications that can run in FP8; none if they are a small part of the step, or if this GPU has no
    FP8."""
    if case.roofline is None or "fp8" not in case.roofline.ceilings.gpu.dense_flops or _why_not_trained(case):
        return []
    found = [
        one for one in layer_matmuls(case) if all(size % DIMENSION_MULTIPLE == 0 for size in (one.m, one.k, one.n))
    ]
    graph = case.graph
    forward, weights = (sum(one.role == role for one in found) for role in (FORWARD, GRAD_WEIGHT))
    if weights < LEAST_TRAINED_SHARE * forward:  # frozen weights, with adapters or without
        return []
    took = sum(float(graph.duration_ns[one.nodes].sum()) for one in found)
    return found if took >= LEAST_MATMUL_SHARE * float(graph.duration_ns[graph.on_gpu].sum()) else []


def _why_not_trained(case: Analysis) -> str | None:
    """Why the linear layers' weights are not trained; None if they are, or if it is unknown."""
    model = (case.run.model if case.run else None) or {}
    if model.get("quantization"):
        return "the weights are quantized, and FP8 training needs them in bf16"
    return "LoRA trains adapters, which are too small for FP8" if model.get("lora") else None


def _cost(case: Analysis, layers: Sequence[LayerMatmul], recipe: Recipe, way: int) -> _Cost:
    """The effect of a recipe; `way` 0: at best, 1: as expected, 2: at worst."""
    graph, roof = case.graph, case.roofline
    assert roof is not None
    ratio = (calibrated.RATIO_ROWS if recipe is ROWWISE else calibrated.RATIO).rising[way]
    share = (calibrated.CAST_ROWS if recipe is ROWWISE else calibrated.CAST).falling[way]
    bandwidth = (roof.ceilings.gpu.measured_bytes_per_s or roof.ceilings.memory_bytes_per_s) * share
    factor, stays, added = np.ones(len(graph)), np.zeros(len(graph)), np.zeros(len(graph))
    launch_ns = _launch_ns(case) * calibrated.LAUNCH.rising[way]
    source = launcher_of(graph)
    shared = np.bincount(source[source >= 0], minlength=len(graph)) > 1  # a CUDA graph launches all at once
    for one in layers:
        factor[one.nodes] = ratio
        stays[one.nodes[0]] = kernel_times.MATMUL_ADDED_NS.value
        kernels = cast_kernels(recipe, one.role, one.m, one.k, one.n, one.casts_input)
        added[one.nodes[0]] += cast_ns(kernels, bandwidth, calibrated.KERNEL_NS.rising[way])
        launcher = source[one.nodes[0]]
        if launcher >= 0 and not shared[launcher]:
            added[launcher] += len(kernels) * launch_ns
    return _Cost(factor, stays, added)


def _launch_ns(case: Analysis) -> float:
    """CPU time per launch of this step's generated code, including overhead; that of a usual launch if the step is not
    compiled."""
    graph = case.graph
    inside = case.nodes_within(case.ops_named(GENERATED.search))
    launches = int((inside & graph.on_gpu).sum())
    host = inside & (graph.lane >= 0) & ~graph.waits
    return float(graph.duration_ns[host].sum()) / launches if launches else calibrated.LAUNCH_NS.value


def _made(graph: Graph, cost: _Cost) -> Graph:
    """The graph with its linear layers in FP8."""
    each = graph.duration_ns
    stays = np.minimum(each, cost.beyond_ns)
    then = np.where(cost.factor < 1, stays + (each - stays) * cost.factor, each)
    return graph.with_durations(then + cost.added_ns)


def _evidence(case: Analysis, layers: Sequence[LayerMatmul], cost: _Cost) -> tuple[Evidence, ...]:
    """Evidence: the layers' time, FP8's savings, the cost of casts, other recipes, and a projection to Blackwell."""
    graph = case.graph
    nodes, text = _saved(case, layers, cost)
    found = list(spans(case, text, nodes))
    now = case.step_of(graph)
    for recipe in (ROWWISE, DELAYED):
        then = case.step_of(_made(graph, _cost(case, layers, recipe, 1)))
        found.append(Evidence(f"{recipe.name}: {now / then:.2f}× by the same count of bytes and kernels"))
    if projected := _on_blackwell(layers):
        found.append(Evidence(projected))
    return tuple(found)


def _saved(case: Analysis, layers: Sequence[LayerMatmul], cost: _Cost) -> tuple[Mask, str]:
    """(the layers' kernels, a sentence on the time that FP8 saves and adds)."""
    graph = case.graph
    nodes = np.zeros(len(graph), bool)
    nodes[np.concatenate([one.nodes for one in layers])] = True
    took = case.per_step(float(graph.duration_ns[nodes].sum()))
    each = graph.duration_ns[nodes]
    stays = np.minimum(each, cost.beyond_ns[nodes])
    saved = case.per_step(float(((each - stays) * (1 - cost.factor[nodes])).sum()))
    casts = case.per_step(float(cost.added_ns[nodes].sum()))
    launching = case.per_step(float(cost.added_ns[~graph.on_gpu].sum()))
    text = (
        f"{case.per_step(float(nodes.sum())):,.0f} matrix multiplications of linear layers in half precision take "
        f"{duration(took)} {case.unit.a}; FP8 saves {duration(saved)} of it, casts and scales take {duration(casts)} of"
        f" GPU time and {duration(launching)} of CPU time"
    )
    return nodes, text


def _on_blackwell(layers: Sequence[LayerMatmul]) -> str:
    """Projected gain of MXFP8 for the layers alone on a Blackwell GPU; empty if its rates are unknown."""
    gpu: Gpu | None = next((one for one in load_gpus() if one.name == BLACKWELL), None)
    rate = gpu and (gpu.measured_flops or gpu.half_flops)
    if gpu is None or not rate:
        return ""
    bandwidth = gpu.measured_bytes_per_s or gpu.memory_bytes_per_s
    forward = {(one.m, one.k, one.n) for one in layers if one.role == 0}
    gains = [
        alone(*shape, rate, bandwidth, MXFP8, ratio=calibrated.RATIO.value, cast_share=calibrated.CAST.value,
              shortest_ns=calibrated.KERNEL_NS.rising[1], added_ns=kernel_times.MATMUL_ADDED_NS.value)
        for shape in forward
    ]  # fmt: skip
    if not gains:
        return ""
    span = f"{min(gains):.2f}×" if len(gains) == 1 else f"{min(gains):.2f} to {max(gains):.2f}×"
    return f"projected, not measured: MXFP8 on a {gpu.name} would make these layers {span} as fast as bf16 there"


def _absent(case: Analysis) -> str | None:
    if case.roofline is None:
        return None
    gpu = case.roofline.ceilings.gpu
    if "fp8" not in gpu.dense_flops:
        return "this GPU does not multiply FP8"
    if why := _why_not_trained(case):
        return why
    layers = _layers(case)
    if not layers:
        return "linear layers in half precision take little of the GPU's time"
    return _saved(case, layers, _cost(case, layers, TENSORWISE, 1))[1]


ABSENT = Absent("FP8 linear layers", _absent)

FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    synonyms=("float8", "torchao", "transformer_engine", "mxfp8", "scaled_mm"),
    titles=("fp8_linear_layers_torchao_float8", "torch_compile_and_fp8_linear_layers"),
)
