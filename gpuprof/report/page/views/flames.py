"""What the icicle view shows: GPU time, CPU time and idle time, each as a tree."""

from __future__ import annotations

import numpy as np

from gpuprof.diagnosis.idle.gaps import CAUSES, GapColumns
from gpuprof.diagnosis.sampled.sampled_functions import SampledStacks
from gpuprof.report.names import shown
from gpuprof.report.page.views.host_tracks import call_paints, step_ranges, thread_name
from gpuprof.report.page.views.nesting_rows import own_ns
from gpuprof.report.page.views.texts import Texts, coded
from gpuprof.report.page.views.trees import Builder, Paths, Tree, among, paths, tree
from gpuprof.report.page.views.view_colours import BY_CATEGORY, BY_CAUSE, BY_PHASE, number
from gpuprof.report.palette import CAUSE_PAINTS
from gpuprof.timeline.frames import MODULE, FrameIndex, module_class
from gpuprof.timeline.nesting import climb, nest
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import ANNOTATION, AUTOGRAD_ENGINE, I64, OP, Trace


def flames(timeline: Timeline, gaps: GapColumns, texts: Texts) -> list[Tree]:
    """The trees of a recording, without empty ones."""
    found = [_gpu(timeline, texts), _host(timeline, texts), _idle(timeline, gaps, texts)]
    return [tree for tree in found if int(tree.own_ns.sum())]


# -- GPU time


def _gpu(timeline: Timeline, texts: Texts) -> Tree:
    """Phase → modules → ops → kernel."""
    trace, links, rows = timeline.trace, timeline.links, timeline.members
    frames = FrameIndex(trace, timeline.nesting)
    scope = links.scope[rows]
    in_frames, in_ops = frames.module_rows(links.thread[rows], links.begun_ns[rows], scope)
    frame_parents, op_parents = frames.module_parents()
    by_frame = _module_paths(trace, frame_parents, in_frames, "frames", texts)
    by_range = _module_paths(trace, op_parents, in_ops, "ops", texts)
    by_op, op_node = _op_paths(timeline, scope, texts)
    kernel = texts.kernels(trace.gpu.name[rows])
    phase = timeline.phase[rows].astype(np.int64)
    first, code = coded(phase, by_frame.node, by_range.node, op_node, kernel) if len(rows) else (rows[:0], rows[:0])
    names = [texts.add(name) for name in PHASES]
    builder = Builder(texts.add("GPU time"))
    ends = []
    for i in first.tolist():
        way = [names[phase[i]], *_way(by_frame, int(by_frame.node[i])), *_way(by_range, int(by_range.node[i]))]
        way += [*_way(by_op, int(op_node[i])), int(kernel[i])]
        node = 0
        for text in way:
            node = builder.child(node, text)
        ends.append(node)
    duration = (trace.gpu.end_ns - trace.gpu.start_ns)[rows].clip(0)
    parent, text = builder.columns()
    modules = bool((in_frames >= 0).any() or (in_ops >= 0).any())
    way_down = "phase → module → op → kernel" if modules else "phase → op → kernel"
    note = "" if modules else "The recording does not say which modules its ops are in."
    return tree(
        "gpu", "GPU time", way_down, note, parent, text, np.array(ends, np.int64)[code], duration,
        np.ones(len(rows), np.int64), BY_CATEGORY[timeline.category[rows]], number("work", "idle"),
        number("ground", "mixed"),
    )  # fmt: skip


def _way(found: Paths, node: int) -> list[int]:
    """Labels from the top down to a node."""
    labels = []
    while node >= 0:
        labels.append(int(found.label[node]))
        node = int(found.parent[node])
    return labels[::-1]


def _module_paths(trace: Trace, parents: I64, wanted: I64, table: str, texts: Texts) -> Paths:
    """Paths of modules by class, for the rows `wanted` of the frames or the ops (-1: none)."""
    name = getattr(trace, table).name
    used = np.zeros(len(parents), bool)
    reached = np.unique(wanted[wanted >= 0])
    while len(reached):
        used[reached] = True
        reached = np.unique(parents[reached])
        reached = reached[(reached >= 0) & ~used[np.maximum(reached, 0)]]
    rows, above = among(parents, used, parents)
    classes = {i: texts.add(shown(module_class(trace.strings[i]), 80)) for i in np.unique(name[rows]).tolist()}
    found = paths(above, np.array([classes[i] for i in name[rows].tolist()], np.int64))
    node = np.full(len(parents) + 1, -1, np.int64)
    node[rows] = found.node
    return Paths(node[wanted], found.parent, found.label)


def _op_paths(timeline: Timeline, scope: I64, texts: Texts) -> tuple[Paths, I64]:
    """Paths of ops and the user's own ranges; and the node of each `scope`.

    Without what is shown elsewhere or says nothing: modules, the steps, autograd's wrapper around each of its ops.
    """
    trace, nesting = timeline.trace, timeline.nesting
    ops = trace.ops

    def telling(text: str) -> bool:
        return not (text.startswith((AUTOGRAD_ENGINE, MODULE)) or timeline.steps.are(text))

    keep = trace.rows_named(ops.name, telling)
    keep &= (ops.kind == OP) | ~trace.rows_named(ops.name, lambda text: "ProfilerStep" in text)
    climbed = climb(nesting.parent, nesting.parent, keep)
    rows, above = among(nesting.parent, keep, climbed)
    found = paths(above, texts.names(ops.name[rows]))
    node = np.full(len(ops) + 1, -1, np.int64)
    node[rows] = found.node
    return found, node[climb(scope, nesting.parent, keep)]


# -- CPU time


def _host(timeline: Timeline, texts: Texts) -> Tree:
    """Thread → Python frames, ops and calls, on the threads that drive the GPU; in the window.

    Rows are the root, the threads, then the spans.
    """
    trace, (low, high) = timeline.trace, timeline.window
    threads = [t for t in dict.fromkeys((timeline.main_thread, *sorted(timeline.host.autograd))) if t >= 0]
    above = 1 + len(threads)
    thread, start, end, label, paint = _host_spans(timeline, threads, texts)
    spans = nest(thread.astype(np.int32), start, end)
    row_of_thread = np.zeros(len(trace.threads) + 1, np.int64)
    row_of_thread[threads] = np.arange(1, above)
    outer = np.where(spans.parent >= 0, spans.parent + above, row_of_thread[thread])
    parent = np.concatenate([[-1], np.zeros(len(threads), np.int64), outer])
    took = own_ns(spans, thread.astype(np.int32), start, end)
    own = np.concatenate([[0], np.full(len(threads), high - low), took])
    np.subtract.at(own, row_of_thread[thread], took)
    names = [texts.add("CPU time"), *(texts.add(thread_name(timeline, t)) for t in threads)]
    found = paths(parent, np.concatenate([np.array(names, np.int64), label]))
    stacks = bool(len(trace.frames))
    return tree(
        "host", "CPU time", "thread → Python → op → call" if stacks else "thread → op → call",
        "Each thread is as wide as the window. What has nothing below it is time in no recorded op or call"
        + ("." if stacks else ": Python, or waiting for another thread."),
        found.parent, found.label, found.node, own, np.ones(len(own), np.int64),
        np.concatenate([np.full(above, number("work", "idle")), paint]), number("work", "idle"),
        number("ground", "mixed"),
    )  # fmt: skip


def _host_spans(timeline: Timeline, threads: list[int], texts: Texts) -> tuple[I64, I64, I64, I64, I64]:
    """(thread, start, end, text, paint) of everything that ran on some threads, cut at the window."""
    trace, (low, high) = timeline.trace, timeline.window
    paints = (
        np.full(len(trace.frames), number("host", "python")),
        np.where(trace.ops.kind == ANNOTATION, number("host", "range"), BY_PHASE[timeline.host.op]),
        call_paints(timeline),
    )
    columns = []
    for table, paint in zip((trace.frames, trace.ops, trace.calls), paints, strict=True):
        rows = np.flatnonzero(np.isin(table.thread, threads) & (table.start_ns < high) & (table.end_ns > low))
        begin, end = table.start_ns[rows].clip(low), np.minimum(table.end_ns[rows], high)
        names = texts.names(table.name[rows])
        if table is trace.ops:  # one box for all steps: their numbers distinguish nothing
            names = np.where(step_ranges(timeline)[rows], texts.add("steps"), names)
        columns.append((table.thread[rows].astype(np.int64), begin, end, names, paint[rows]))
    thread, start, end, label, paint = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return thread, start, end, label, paint


# -- CPU time of unprofiled steps


def sampled(found: SampledStacks, steps: int, texts: Texts) -> Tree:
    """The user's own line → what it calls, line by line; steps merged. Frames above the user's first line (the
    launcher) are left out. `steps`: what the page divides by."""
    stacks, samples = found.stacks, found.stacks.samples
    builder, ends = Builder(texts.add("a step of the CPU")), []
    for path in stacks.of_sample:
        own = next((i for i, frame in enumerate(path) if stacks.functions[frame.function].kind == "own"), 0)
        node = 0
        for frame in path[own:]:
            function = stacks.functions[frame.function]
            node = builder.child(node, texts.add(shown(f"{function.name}  {function.file}:{frame.line}", 120)))
        ends.append(node)
    parent, text = builder.columns()
    ns = np.full(len(samples), samples.step_ns * steps / len(samples))
    paint = np.full(len(samples), number("host", "python")) if found.waits is None else found.waits
    note = (
        "Sampled in unprofiled steps. The yellower, the larger the share of the time in which the GPU waits. Grey: the"
        " GPU works meanwhile, so that a faster CPU gains nothing."
        if found.waits is not None
        else "Sampled in unprofiled steps."
    )
    return tree(
        "functions", "Python functions", "your line → what it calls", note, parent, text, np.array(ends, np.int64),
        np.round(ns).astype(np.int64), np.ones(len(samples), np.int64), paint, number("work", "idle"),
    )  # fmt: skip


# -- idle time


def _idle(timeline: Timeline, gaps: GapColumns, texts: Texts) -> Tree:
    """Cause → phase → class of the module → op that is waited for."""
    trace = timeline.trace
    row, cause = np.nonzero(gaps.by_cause)
    op = np.where(gaps.op[row] >= 0, trace.ops.name[gaps.op[row]] if len(trace.ops) else -1, -1)
    phase, module = gaps.phase[row].astype(np.int64), gaps.module[row]
    first, code = coded(cause, phase, module, op) if len(row) else (row, row)
    builder, ends = Builder(texts.add("idle")), []
    phases = [texts.add(name) for name in PHASES]
    for i in first.tolist():
        paint = CAUSE_PAINTS[CAUSES[cause[i]]]
        node = builder.child(builder.child(0, texts.add(paint.label)), phases[phase[i]])
        if module[i] >= 0:
            node = builder.child(node, texts.add(shown(module_class(trace.strings[module[i]]), 80)))
        if op[i] >= 0:
            node = builder.child(node, texts.name(int(op[i])))
        ends.append(node)
    parent, text = builder.columns()
    return tree(
        "idle", "idle time", "cause → phase → module → op that was waited for", "As recorded, under the profiler.",
        parent, text, np.array(ends, np.int64)[code], gaps.by_cause[row, cause], np.ones(len(row), np.int64),
        BY_CAUSE[cause], number("work", "idle"),
    )  # fmt: skip
