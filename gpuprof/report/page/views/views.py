"""The data of the page's views, packed: timeline, flames, kernel table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.sampled.sampled_functions import sampled_stacks
from gpuprof.diagnosis.sentences import gpu_named
from gpuprof.report.names import shown
from gpuprof.report.page.packing import LARGEST_VALUE, Columns, pack
from gpuprof.report.page.views import view_colours
from gpuprof.report.page.views.counter_lines import CounterLine, memory_lines
from gpuprof.report.page.views.flames import flames, sampled
from gpuprof.report.page.views.gpu_tracks import gpu_tracks
from gpuprof.report.page.views.host_tracks import host_tracks, thread_name, threads_of
from gpuprof.report.page.views.kernel_rows import kernel_rows
from gpuprof.report.page.views.overview import overview_tracks
from gpuprof.report.page.views.texts import Texts
from gpuprof.report.page.views.timeline_window import MOST_EVENTS, DrawnRows, choose, near
from gpuprof.report.page.views.tracks import Track, assemble
from gpuprof.report.page.views.trees import Tree
from gpuprof.timeline.timeline import Timeline
from gpuprof.units import Convention, Threads, Version

FORMAT_VERSION: Convention[Version] = 1
OPEN_THREADS: Convention[Threads] = 2
"""Host threads that are expanded at first: the main thread and autograd's."""

_NOTHING = np.empty(0, np.int64)


def packed_views(diagnosis: Diagnosis, most_events: int = MOST_EVENTS) -> tuple[bytes, str]:
    """(what the viewer unpacks, a note on what the timeline leaves out of the recording).

    Raises GpuprofError where nothing was recorded.
    """
    tables = diagnosis.tables
    timeline = tables.timeline
    part, texts = choose(timeline, most_events), Texts(timeline.trace.strings)
    origin = timeline.window[0]
    groups, tracks, lines, left_out = _tracks(diagnosis, timeline, part, texts)
    least, most = near(timeline)
    tracks = [replace(t, start_ns=t.start_ns.clip(least, most), end_ns=t.end_ns.clip(least, most)) for t in tracks]
    span_low = min([part.low_ns, *(int(t.start_ns.min()) for t in tracks if len(t.start_ns))])
    heads, columns = assemble(tracks, span_low)
    # CPU events that are open when the profiler stops end with it, which is not part of the training.
    ends = [int(t.end_ns.max()) for t in tracks if len(t.end_ns) and t.kind not in ("frames", "ops")]
    span_high = max([part.high_ns, *ends])
    trees = flames(timeline, tables.columns, texts)
    if diagnosis.host is not None and diagnosis.folder is not None:
        found = sampled_stacks(diagnosis.folder.path, diagnosis.folder.rank, analysis_of(diagnosis))
        trees += [] if found is None else [sampled(found, len(timeline.steps.start_ns), texts)]
    kernels = kernel_rows(tables, texts)
    counters = []
    for i, (track, line) in enumerate(lines):
        counters.append({"track": track, "unit": "bytes", "count": len(line.time_ns)})
        columns |= {f"counter{i}.time": line.time_ns - span_low, f"counter{i}.value": line.value}
    for i, tree in enumerate(trees):
        columns |= _tree_columns(f"tree{i}", tree)
    known_paints, legends = view_colours.header(generates=len(timeline.host.generation) > 0)
    header = {
        "version": FORMAT_VERSION,
        "span": [span_low - origin, span_high - origin],
        "window": [0, timeline.window[1] - origin],
        "steps": [
            [start - origin, end - origin]
            for start, end in zip(timeline.steps.start_ns.tolist(), timeline.steps.end_ns.tolist(), strict=True)
        ],
        "step_count": len(timeline.steps.start_ns),
        "strings": texts.texts,
        "full": {str(i): text for i, text in texts.full.items()},
        "paints": known_paints,
        "legends": legends,
        "groups": groups,
        "tracks": heads,
        "counters": counters,
        "trees": [
            {"id": t.id, "title": t.title, "levels": t.levels, "note": t.note, "nodes": len(t.parent)} for t in trees
        ],
        "kernels": kernels,
    }
    more = f"{left_out} host threads with fewer events are left out." if left_out else ""
    return pack(header, columns), " ".join(filter(None, [part.note, more]))


def _tree_columns(name: str, tree: Tree) -> Columns:
    return {
        f"{name}.parent": tree.parent + 1,
        f"{name}.name": tree.text,
        f"{name}.paint": tree.paint,
        f"{name}.own": tree.own_ns.clip(max=LARGEST_VALUE),
        f"{name}.count": tree.count,
    }


def _tracks(
    diagnosis: Diagnosis, timeline: Timeline, part: DrawnRows, texts: Texts
) -> tuple[list[dict[str, str]], list[Track], list[tuple[int, CounterLine]], int]:
    """(groups, tracks, counters with the number of their track, host threads left out)."""
    groups = [{"name": "overview", "kind": "overview"}]
    tracks = overview_tracks(diagnosis, timeline, part, texts, 0)
    lines: list[tuple[int, CounterLine]] = []
    memory = memory_lines(timeline.trace, part)
    names = {gpu.device: gpu.name for gpu in diagnosis.environment.gpus}
    for device in timeline.devices:
        name = names.get(device.device, "")
        label = gpu_named(device.device, len(timeline.devices))
        groups.append({"name": label + (f" · {shown(name, 40)}" if name else ""), "kind": "gpu"})
        own = gpu_tracks(timeline, diagnosis.tables.columns, part, texts, device.device, len(groups) - 1)
        tracks += [track for track in own if len(track.start_ns)]
        for line in memory:
            if line.device == device.device:
                lines.append((len(tracks), line))
                tracks.append(_empty(len(groups) - 1, line.name))
    threads, left_out = threads_of(timeline, part)
    for i, thread in enumerate(threads):
        groups.append({"name": thread_name(timeline, thread), "kind": "host"})
        tracks += host_tracks(timeline, part, texts, thread, len(groups) - 1, is_open=i < OPEN_THREADS)
    return groups, tracks, lines, left_out


def _empty(group: int, name: str) -> Track:
    """A track without events, on which a line is drawn."""
    return Track(group, name, "counter", _NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING)
