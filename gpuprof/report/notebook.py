"""A Diagnosis and a Trace as HTML fragments for notebooks: self-contained, light and dark, no scripts.
Every text passes through `_text`, which escapes control and bidi characters and all HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as html_escape
from typing import TYPE_CHECKING

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Finding
from gpuprof.diagnosis.verdict import step_parts
from gpuprof.diagnosis.verdict.headline import headline, key_and_why
from gpuprof.diagnosis.verdict.step_parts import Bar, BarPart
from gpuprof.report import labels, stepbar
from gpuprof.report.as_text import predicted, reasons
from gpuprof.report.code_lines import blocks
from gpuprof.report.names import escape, shown, shown_kernel
from gpuprof.report.numbers import amount, duration, duration_range, percent, share
from gpuprof.report.words import fixes, host_words, run_words, words
from gpuprof.report.words.settle import settle
from gpuprof.units import Convention, Rows, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.comparison.comparison import Comparison
    from gpuprof.projection.projection import Projection
    from gpuprof.tracefile.trace import Trace

ROWS: Convention[Rows] = 8
WORTH_NAMING: Convention[Share] = 0.005
"""Smallest share for which a part of the bar has an entry in the legend."""

# Colours of the text come from the page, so that its theme, light or dark, holds here too.
_STYLE = """
.gpuprof { font-family: system-ui, sans-serif; font-size: 13px; line-height: 1.45; max-width: 960px;
  color: inherit; color-scheme: light dark; }
.gpuprof h3 { font-size: 16px; margin: 0 0 2px; }
.gpuprof h4 { font-size: 12px; margin: 12px 0 3px; opacity: .7; font-weight: 600; }
.gpuprof p { margin: 2px 0; }
.gpuprof .dim { opacity: .65; }
.gpuprof .bar { display: flex; height: 16px; border-radius: 3px; overflow: hidden; margin: 4px 0;
  background: rgba(128, 128, 128, .15); }
.gpuprof .bar span { display: block; min-width: 0; }
.gpuprof .bar .idle, .gpuprof .key.idle { background-image: repeating-linear-gradient(135deg,
  rgba(255, 255, 255, .4) 0 3px, transparent 3px 6px); }
.gpuprof .key { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin: 0 4px 0 0; }
.gpuprof .legend > span { margin-right: 14px; white-space: nowrap; }
.gpuprof table { border-collapse: collapse; margin: 0; font-size: 12px; }
.gpuprof td, .gpuprof th { text-align: left; padding: 1px 12px 1px 0; border: 0; background: none;
  vertical-align: top; }
.gpuprof td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.gpuprof code { font-family: ui-monospace, monospace; font-size: 11.5px; background: none; color: inherit;
  overflow-wrap: anywhere; }
.gpuprof b code { white-space: nowrap; }
.gpuprof .issue { border-left: 3px solid #999; padding-left: 8px; margin: 4px 0; }
.gpuprof .issue.warning { border-color: #e69f00; }
.gpuprof .issue.error { border-color: #d55e00; font-weight: 600; }
"""


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """Verdict, quality, step bar, fixes, what is worth trying, functions, gaps and kernels."""
    parts = [
        f"<h3>{_text(headline(diagnosis))}</h3>",
        _facts(diagnosis),
        f"<p>{_text(diagnosis.verdict.summary)}</p>",
        *(f'<p class="dim">{_text(line)}</p>' for line in run_words.lines(diagnosis)),
        _issues(diagnosis),
        _bars(diagnosis),
        _fixes(diagnosis),
        _worth_trying(diagnosis),
        _functions(diagnosis),
        _gaps(diagnosis),
        _kernels(diagnosis),
        f"<p>{_text(words.profiler(diagnosis) or '')}</p>",
        f'<p class="dim">{_text(words.source(diagnosis))}</p>',
    ]
    return _page(parts)


def finding_html(finding: Finding) -> str:
    """What to change and what it gains."""
    parts = [
        f"<h3>{_text(finding.title)}</h3>",
        f"<p><b>{_text(predicted(finding))}</b></p>",
        _how(finding),
        f'<p class="dim">{_text(finding.changes)}</p>' if finding.changes else "",
        "".join(map(_dim, reasons(finding))),
    ]
    return _page(parts)


def comparison_html(comparison: Comparison) -> str:
    """Both steps, what changed, and what the reader must know."""
    from gpuprof.report.words import comparison_words

    rows = [
        (
            f"<b>{_text(one.title)}</b>",
            _text(comparison_words.signed(one.difference_ns)),
            "" if one.share is None else _text(percent(one.share)),
            _text(comparison_words.sentence(one)),
        )
        for one in comparison_words.shown_mechanisms(comparison)
    ]
    parts = [
        f"<h3>{_text(comparison_words.outcome(comparison))}</h3>",
        f"<p><b>{_text(comparison_words.steps(comparison))}</b></p>",
        f"<p>{_text(comparison.summary)}</p>",
        f"<h4>What changed</h4>{_table(rows, numbers=(1, 2))}" if rows else "",
        f'<p class="dim">{_text(comparison_words.unexplained(comparison) or "")}</p>',
        "".join(f'<p class="issue {_text(note.severity)}">{_text(note.message)}</p>' for note in comparison.notes),
    ]
    return _page(parts)


def projection_html(projection: Projection) -> str:
    """The step on each GPU: time, speedup, what limits it, what fits."""
    head = ("GPU", projection.unit.a, "80 %", "× recorded", "limited by", "fits", "largest batch")
    rows = [
        (
            f"<b>{_text(one.gpu)}</b>",
            duration(one.step_ns.expected),
            duration_range(one.step_ns.low, one.step_ns.high),
            f"{one.speedup.expected:.2f}× ({one.speedup.low:.2f}–{one.speedup.high:.2f})",
            _text(one.bound or "–"),
            "–" if one.memory is None else "yes" if one.memory.fits else "no",
            "–" if one.memory is None or one.memory.largest_batch is None else f"{one.memory.largest_batch:,}",
        )
        for one in projection.gpus
    ]
    recorded = projection.recorded
    of = f"{duration(recorded.step_ns.expected)} {projection.unit.a} on {recorded.device_name or recorded.gpu}"
    parts = [
        f"<h3>{_text(projection.summary)}</h3>",
        f"<p><b>recorded: {_text(of)}</b></p>",
        _table([head, *rows], numbers=(1, 2, 3, 6)),
        f"<p>{_text(projection.explanation.summary)}</p>" if projection.explanation else "",
        "".join(f'<p class="dim">{_text(line)}</p>' for line in projection.assumptions),
    ]
    return _page(parts)


def trace_html(trace: Trace) -> str:
    """What a recording holds: counts, devices, threads."""
    tables = {
        "ops": trace.ops, "calls": trace.calls, "GPU events": trace.gpu, "Python frames": trace.frames,
        "synchronisations": trace.syncs, "memory events": trace.memory,
    }  # fmt: skip
    counts = " · ".join(f"{len(table):,} {name}" for name, table in tables.items() if len(table))
    gpus = ", ".join(shown(gpu.name, 40) for gpu in trace.meta.gpus if gpu.name)
    cut = trace.reading.truncated
    parts = [
        "<h3>Trace</h3>",
        f"<p><code>{_name(trace.reading.path, 200)}</code></p>",
        f"<p>{_text(counts) or 'no events'}</p>",
        f'<p class="dim">{_text(gpus)}</p>' if gpus else "",
        f'<p class="issue warning">The file is cut: {_text(cut)}</p>' if cut else "",
        '<p class="dim">gpuprof.diagnose(trace) says why its steps take as long as they do.</p>',
    ]
    return _page(parts)


def _page(parts: Iterable[str]) -> str:
    body = "\n".join(part for part in parts if part)
    return f'<div class="gpuprof"><style>{_STYLE}</style>\n{body}\n</div>'


def _text(text: str) -> str:
    return html_escape(escape(text), quote=True)


def _name(name: str | None, width: int = 80) -> str:
    return html_escape(shown(name, width), quote=True)


def _facts(diagnosis: Diagnosis) -> str:
    found = (words.step_time(diagnosis), words.usual_step(diagnosis))
    facts = (*found, key_and_why(diagnosis), words.gpus(diagnosis), words.versions(diagnosis))
    line = " · ".join(fact for fact in facts if fact)
    return f"<p><b>{_text(line)}</b></p>" if line else ""


def _issues(diagnosis: Diagnosis) -> str:
    return "".join(
        f'<p class="issue {_text(issue.severity)}">{_text(issue.message)}</p>' for issue in diagnosis.quality.issues
    )


def _bars(diagnosis: Diagnosis) -> str:
    bars = step_parts.bars(diagnosis)
    if not bars:
        return ""
    kind = "without the profiler" if step_parts.estimated(diagnosis) else "as recorded"
    return f"<h4>The step, {kind}</h4>" + "".join(_bar(bar, len(bars) > 1) for bar in bars)


def _bar(bar: Bar, named: bool) -> str:
    total = max(bar.total_ns, 1)
    spans = "".join(
        f'<span class="{_kind(part)}" style="flex:0 0 {100 * part.ns / total:.3f}%;'
        f'background-color:{stepbar.paint(part).page}" title="{_entry(part, bar)}"></span>'
        for part in bar.parts
    )
    keys = "".join(
        f'<span><i class="key {_kind(part)}" style="background-color:{stepbar.paint(part).page}"></i>'
        f"{_entry(part, bar)}</span>"
        for part in bar.parts
        if part.ns >= WORTH_NAMING * bar.total_ns
    )
    title = f"GPU {bar.device}, " if named else ""
    summary = _text(f"{title}idle {share(bar.idle_ns(), bar.total_ns)}")
    label = f'<p class="dim">{summary}</p>' if named else ""
    drawn = f'<div class="bar" role="img" aria-label="{summary}">{spans}</div>'
    return f'{label}{drawn}<p class="legend">{keys}</p>'


def _kind(part: BarPart) -> str:
    return "idle" if part.idle else "work"


def _entry(part: BarPart, bar: Bar) -> str:
    waiting = "idle: " if part.idle and part.key != step_parts.IDLE else ""
    return _text(f"{waiting}{labels.part(part)} {share(part.ns, bar.total_ns)}")


def _gaps(diagnosis: Diagnosis) -> str:
    gaps = diagnosis.gaps
    if gaps is None or not gaps.total_ns:
        return ""
    steps = diagnosis.steps.count if diagnosis.steps else 1
    rows = [
        (
            _name(phase.phase),
            duration(phase.ns / steps),
            amount(phase.count / steps, "gap"),
            f"<code>{_text(words.waits_for(phase))}</code>",
        )
        for phase in gaps.by_phase
    ]
    largest = [
        (
            _text(labels.cause(gap.cause)),
            duration(gap.ns),
            f"at {duration(gap.start_ns)}",
            f"<code>{_text(words.waits_for(gap))}</code>",
            f'<code class="dim">{_name(gap.frame)}</code>' if gap.frame else "",
        )
        for gap in gaps.largest[:ROWS]
    ]
    return (
        f"<h4>What the GPU waits for{_a_step(diagnosis)}, as recorded</h4>{_table(rows, numbers=(1, 2))}"
        f"<h4>Longest gaps</h4>{_table(largest, numbers=(1, 2))}"
    )


def _kernels(diagnosis: Diagnosis) -> str:
    kernels = diagnosis.kernels
    if kernels is None or not kernels.count:
        return ""
    steps = diagnosis.steps.count if diagnosis.steps else 1
    categories = " · ".join(
        f"{_text(labels.category(c.category))} {share(c.ns, kernels.total_ns)}"
        for c in kernels.by_category
        if c.ns >= WORTH_NAMING * kernels.total_ns
    )
    rows = [
        (
            duration(kernel.ns / steps),
            share(kernel.ns, kernels.total_ns),
            f"{amount(kernel.count / steps, 'time')}",
            f'<code title="{_name(kernel.name, 400)}">{html_escape(shown_kernel(kernel.name, 90))}</code>',
            f'<code class="dim">{_name(kernel.op)}</code>' if kernel.op else "",
        )
        for kernel in kernels.top[:ROWS]
    ]
    return f"<h4>Kernels{_a_step(diagnosis)}</h4><p>{duration(kernels.total_ns / steps)}: {categories}</p>" + _table(
        rows, numbers=(0, 1, 2)
    )


def _fixes(diagnosis: Diagnosis) -> str:
    rows = [
        (f"<b>{_text(one.title)}</b>", _text(predicted(one)), _how(one) + _dim(one.changes))
        for one in diagnosis.findings[:ROWS]
    ]
    return f"<h4>Fixes</h4>{_table(rows, numbers=())}" if rows else ""


def _worth_trying(diagnosis: Diagnosis) -> str:
    rows = [
        (f"<b>{_text(one.title)}</b>", _text(f"{predicted(one)}, {fixes.chance(one)}"), _how(one) + _dim(settle(one)))
        for one in diagnosis.worth_trying[:ROWS]
    ]
    return f"<h4>Worth trying</h4>{_table(rows, numbers=())}" if rows else ""


def _functions(diagnosis: Diagnosis) -> str:
    found = host_words.worth_saying(diagnosis)[:ROWS]
    rows = [
        (
            f"<b><code>{_name(host_words.line_of(one, found))}</code></b>",
            f"<code>{_name(host_words.name(one))}</code>",
            host_words.time(one, diagnosis),
            _text(host_words.gain(one, diagnosis.step_ns)),
            f'<code class="dim">{_name(one.place)}</code>' if one.called_from else "",
        )
        for one in found
    ]
    table = _table(rows, numbers=(2,)) if rows else ""
    said = table + _dim(host_words.workers(diagnosis))
    return f"<h4>Python functions, per step without a profiler</h4>{said}" if said else ""


def _how(finding: Finding) -> str:
    """Where it is in the user's code; the fix: prose, and code."""
    how = (
        _code("\n".join(lines)) if code else f"<p>{_text(' '.join(lines))}</p>"
        for code, lines in blocks(finding.shown_lines)
    )
    return _dim("; ".join(fixes.own_lines(finding))) + "".join(how)


def _code(text: str) -> str:
    """Code line by line."""
    return "".join(f"<p><code>{_text(line)}</code></p>" for line in text.splitlines())


def _dim(text: str | None) -> str:
    return f'<p class="dim">{_text(text)}</p>' if text else ""


def _a_step(diagnosis: Diagnosis) -> str:
    return ", per step" if diagnosis.steps and diagnosis.steps.source != "none" else ""


def _table(rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> str:
    """A table of cells that are already HTML."""
    lines = (
        "<tr>"
        + "".join(
            f'<td class="number">{cell}</td>' if i in numbers else f"<td>{cell}</td>" for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table>{''.join(lines)}</table>"
