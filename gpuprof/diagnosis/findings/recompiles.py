"""Code is generated, or a kernel planned, in the middle of the training."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gpuprof.diagnosis.case import Case, Change
from gpuprof.diagnosis.evidence import spans
from gpuprof.diagnosis.proposal import Page, Proposal
from gpuprof.replay.graph import Graph, Mask
from gpuprof.replay.transform import removed, scaled
from gpuprof.tracefile.model import OP

COMPILING = re.compile(
    r"\(dynamo_timed\)|^(_compile\.|compile_fx|entire_frame_compile|backend_compile|inductor_compile|GraphLowering\."
    r"|async_compile|CachingAutotuner\.(precompile|benchmark)|create_aot_dispatcher_function)"
)
"""Ranges of Dynamo and Inductor at work."""
LOADING = re.compile(r"^(cu(Module|Library)Load|nvrtcCompile|cuLinkComplete|hipModuleLoad|cudaLibraryLoad)")
"""Driver calls that bring new code to the GPU."""
LONG_NS = 3_000_000.0
"""What an op's own host work takes at least when it plans or compiles: cuDNN builds a plan of attention in 40 to 70 ms,
Triton and cuBLAS try candidates for 3 ms and more; launching takes microseconds."""
TIMES = 30.0
"""And so many times the usual of the same op; a host that is merely interrupted or slow does not do that to one op."""
SHARE = 0.5
"""Part of the recorded steps that it must happen in: once is warming up."""
USUAL_NS = 80_000.0
"""What such an op takes otherwise, where the recording shows it only while planning: cuDNN attention on an H200's host
takes 70 to 90 µs."""
OTHER_KERNEL = 1.3
"""At worst the attention kernel that is used instead takes so much longer: a guess, not measured."""
CUDNN_ATTENTION = re.compile(r"cudnn_attention")
MULTIPLE = 64
"""Lengths that are padded to this take 2048 / 64 = 32 different values at most, each planned once."""

PAGE = Page(
    id="recompiles",
    title="New shapes are compiled or planned in the middle of the training",
    means="""
`torch.compile`, Triton, cuDNN and cuBLAS prepare a kernel for the shapes that they see, and keep it. When lengths of
batches vary, many steps meet new shapes: cuDNN attention alone plans for 50 ms for each, forward and backward, in
which nothing is launched.
""",
    detected="""
In at least half of the recorded steps: ranges of Dynamo or Inductor that compile, driver calls that load code, or an
op whose own host work takes over 3 ms and 30 times its usual.
""",
    gain="""
The compiling and loading is gone, and an op that planned takes what it usually does. With another attention backend
the attention kernels are at worst 1.3 times as long.
""",
    wrong="""
After all lengths have been seen once there is nothing left to plan: in a long training this heals by itself if
lengths are few. Padding to a multiple adds some tokens.
""",
)


def find(case: Case) -> Iterator[Proposal]:
    """Fixed shapes, or a backend that does not plan."""
    graph, trace = case.graph, case.trace
    host = (graph.lane >= 0) & ~graph.waits
    compiling = case.nodes_within(case.ops_named(COMPILING.search)) & host
    loads = trace.rows_named(trace.calls.name, LOADING.search)
    compiling |= case.nodes_in_calls(loads) & host & (graph.duration_ns >= LONG_NS)
    planning, usual_ns = _planning(case, host & ~compiling)
    compiling = _in_steps(graph, compiling)
    planning = _in_steps(graph, planning)
    if not (compiling | planning).any():
        return
    lost_ms = case.per_step(float(graph.duration_ns[compiling | planning].sum())) / 1e6
    names = trace.ops.name[np.unique(graph.scope[planning])]
    by_name = sorted({trace.strings[i] for i in np.unique(names).tolist()})
    cudnn = any(CUDNN_ATTENTION.search(name) for name in by_name)

    def change_to(kernels: float) -> Change:
        attention = np.append(case.category("attention"), False)[graph.gpu_row] & graph.on_gpu

        def change(graph: Graph) -> Graph:
            less = removed(graph, compiling)
            duration = np.where(planning, np.minimum(less.duration_ns, usual_ns), less.duration_ns)
            less = less.with_durations(duration)
            return scaled(less, attention, kernels) if cudnn and kernels != 1.0 else less

        return change

    what = [f"{', '.join(by_name)} plan their kernels anew"] if by_name else []
    if compiling.any():
        what.append("code is compiled or loaded")
    yield Proposal(
        title="attention that plans nothing per length" if cudnn else "shapes that stay the same",
        evidence=spans(
            case, f"{' and '.join(what)} in most steps: {lost_ms:,.1f} ms of host time a step", compiling | planning
        ),
        fix=_fix(case, cudnn, bool(compiling.any())),
        change=change_to(1.0),
        best=change_to(1.0),
        worst=change_to(OTHER_KERNEL),
    )


def _planning(case: Case, host: Mask) -> tuple[Mask, float]:
    """Pieces of host work in which an op plans, and what such an op usually takes."""
    graph, trace = case.graph, case.trace
    in_op = host & (graph.call < 0) & np.append(trace.ops.kind == OP, False)[graph.scope]
    rows = np.flatnonzero(in_op & (graph.duration_ns >= LONG_NS))
    found = np.zeros(len(graph), bool)
    usual = []
    name_of = np.append(trace.ops.name, -1)[graph.scope]
    for name in np.unique(name_of[rows]).tolist():
        mine = in_op & (name_of == name)
        others = graph.duration_ns[mine & (graph.duration_ns < LONG_NS)]
        median = float(np.median(others)) if len(others) else USUAL_NS
        hit = rows[name_of[rows] == name]
        hit = hit[graph.duration_ns[hit] >= TIMES * median]
        found[hit] = True
        usual += [median] * len(hit)
    return found, float(np.median(usual)) if usual else USUAL_NS


def _in_steps(graph: Graph, nodes: Mask) -> Mask:
    """The nodes, if there are some in enough of the steps."""
    steps = len(np.unique(graph.step[nodes]))
    return nodes if graph.steps > 1 and steps >= SHARE * graph.steps else np.zeros(len(graph), bool)


def _fix(case: Case, cudnn: bool, compiling: bool) -> str:
    fixed = case.stack.fix(
        f"pad each batch to a multiple of {MULTIPLE}, so that few lengths occur",
        transformers=f"DataCollatorForLanguageModeling(tokenizer, mlm=False, pad_to_multiple_of={MULTIPLE})",
        trl=f"SFTConfig(pad_to_multiple_of={MULTIPLE})",
    )
    if cudnn:
        return f"torch.backends.cuda.enable_cudnn_sdp(False)  # flash attention does not plan\nor {fixed}"
    if compiling:
        return f"{fixed}\nor let the length vary: model.compile(dynamic=True), torch._dynamo.mark_dynamic(tensor, 1)"
    return fixed
