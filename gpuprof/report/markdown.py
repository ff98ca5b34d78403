"""A diagnosis and a comparison as Markdown, for comments on pull requests and for notes. Names are escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuprof.diagnosis.comparison.comparison import Comparison
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Finding
from gpuprof.diagnosis.sentences import listed
from gpuprof.diagnosis.verdict import step_parts
from gpuprof.diagnosis.verdict.headline import headline, key_and_why
from gpuprof.report import labels
from gpuprof.report.code_lines import blocks
from gpuprof.report.names import escape, shown
from gpuprof.report.numbers import duration, share
from gpuprof.report.words import comparison_words, fixes, run_words, words
from gpuprof.units import Convention, Rows, Share

ROWS: Convention[Rows] = 5
"""Findings, and terms of a difference, listed by default."""
_LEAST_PART_SHARE: Convention[Share] = 0.01
"""Share of the step below which a part is not listed."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~@&])")


def diagnosis(found: Diagnosis, rows: int = ROWS) -> str:
    """The headline, where the step goes, and what to change."""
    parts = [f"### {_text(headline(found))}: {_text(words.step_time(found))}".rstrip(": ")]
    about = [key_and_why(found), words.usual_step(found), words.gpus(found), words.versions(found)]
    about += [run_words.tokens(found)]
    parts += [_text(", ".join(item for item in about if item)), _text(found.verdict.summary)]
    issues = [issue for issue in found.quality.issues if issue.severity != "info"]
    parts += ["\n".join(f"- **{issue.severity}**: {_text(issue.message)}" for issue in issues)]
    parts += [_steps(found), _findings(found, rows), _worth_trying(found, rows), _text(fixes.footer(found))]
    return _joined(parts)


def comparison(found: Comparison, rows: int = ROWS) -> str:
    """The outcome, what changed, and where the difference comes from."""
    parts = [f"### {_text(comparison_words.outcome(found))}: {_text(comparison_words.steps(found))}"]
    parts += [_text(found.summary)]
    sides = [("A", found.a), ("B", found.b)]
    lines = [(name, f"`{_code(side.path)}`", _text(comparison_words.bound(side))) for name, side in sides]
    parts += [_table(("", "recording", "verdict"), lines)]
    terms = sorted((term for term in found.terms if term.difference_ns), key=lambda term: -abs(term.difference_ns))
    lines = [
        (_text(comparison_words.term(term)), duration(term.a_ns), duration(term.b_ns),
         comparison_words.signed(term.difference_ns))
        for term in terms[:rows]
    ]  # fmt: skip
    parts += [_table((found.unit, "A", "B", "B − A"), lines)] if lines else []
    mechanisms = comparison_words.shown_mechanisms(found)[:rows]
    parts += ["\n".join(f"- **{_text(one.title)}**: {_text(comparison_words.sentence(one))}" for one in mechanisms)]
    parts += [_text(comparison_words.test(found))]
    parts += ["\n".join(f"- {_text(note.message)}" for note in found.notes if note.severity != "info")]
    return _joined(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts, which are escaped."""
    return _table([_text(cell) for cell in head], [[_text(cell) for cell in row] for row in rows])


def _steps(found: Diagnosis) -> str:
    """Where the step of each device goes, in shares."""
    bars = step_parts.bars(found)[:8]
    several = len(bars) > 1
    rows = []
    for bar in bars:
        for part in bar.parts:
            if part.ns >= _LEAST_PART_SHARE * bar.total_ns:
                name = f"waiting: {labels.part(part)}" if part.idle else labels.part(part)
                rows.append((f"GPU {bar.device}: {name}" if several else name, share(part.ns, bar.total_ns)))
    return table(("the step", "share"), rows) if rows else ""


def _findings(found: Diagnosis, rows: int) -> str:
    now = fixes.now_ns(found)
    if not now or not found.findings:
        return ""
    lines = [
        (str(number), _text(one.title), _text(fixes.gain(one, now)), _how(one))
        for number, one in enumerate(found.findings[:rows], 1)
    ]
    made = _table(("", "what to change", "gain", "how"), lines)
    unsure = fixes.uncertain_mean(found)
    return f"{made}\n\n{unsure[:1].upper()}{unsure[1:]}." if unsure else made


def _how(one: Finding) -> str:
    """The fix in a cell: the lines of the user's code that it is about, code as code, prose as text."""
    made, known = blocks(one.shown_lines), [f"`{_code(line)}`" for line in fixes.known_lines(one)]
    where = f"in {listed(known)}: " if known else ""
    return where + " ".join(
        f"`{_code(' '.join(lines), 400)}`" if code else _text(" ".join(lines)) for code, lines in made
    )


def _worth_trying(found: Diagnosis, rows: int) -> str:
    now = fixes.now_ns(found)
    if not now or not found.worth_trying:
        return ""
    lines = [
        (_text(one.title), _text(fixes.gain(one, now)), _text(fixes.chance(one)),
         f"`{_code(one.settle, 400)}`" if one.settle else "by hand")
        for one in found.worth_trying[:rows]
    ]  # fmt: skip
    return _table(("worth trying", "gain", "", "settled by"), lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _text(text: str) -> str:
    """One line in which nothing is markup, a mention or a link."""
    return _SPECIAL.sub(r"\\\1", escape(" ".join(text.split()))).replace("://", ":\u2060//")


def _code(text: str, width: int = 80) -> str:
    return shown(" ".join(text.split()), width).replace("`", "'").replace("|", "/")
