"""What a diagnosis says in sentences, compared with its own numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Evidence, Finding
from gpuprof.diagnosis.sentences import duration
from gpuprof.report.terminal.terminal import plain

NUMBER = r"[\d,]+(?:\.\d+)?"
REST = re.compile(
    rf"(Most of the rest|The largest part of the rest, ({NUMBER})(?: (?P<own>ms|µs|s))?"
    rf" of ({NUMBER}) (?P<unit>ms|µs|s),)"
    r" is waiting for (?P<what>[^.;]*)"
)
SUBJECTS = {
    "launch": "the CPU (host), which launches", "python": "the CPU (host), which runs Python",
    "sync": "the CPU (host), which itself waited", "input": "the next batch", "transfer": "copies that block",
    "allocator": "the CPU (host), which allocates", "profiler": "the profiler's own", "device": "work that is already",
    "communication": ("other ranks", "collectives"), "unknown": "something that", "slow_call": "single CPU calls that",
    "cpu_compute": "the CPU (host), which computes",
}  # fmt: skip
"""Cause → how a sentence about it begins."""
BY_CPU = ("launch", "cpu_compute", "python", "sync")
"""Causes that count together."""
COMPILES = "the CPU (host), which compiles"
LONGEST = re.compile(rf"; shown: its longest stretch, ({NUMBER}) ms")
OF = re.compile(rf"({NUMBER})(?: m?s| ms)? of ({NUMBER}) ms")
NUMBERED = re.compile(
    r"\b(GPU|rank|device) \d[\d,.]*(?![\d,.])(?! ?(%|[mµn]?s\b|h\b|min\b))|busiest GPU|other ranks|\branks or devices\b"
)
"""`GPU 0`, but not `GPU 12 ms`."""
LANGUAGE = re.compile(r"\btokens?\b|\bpadding\b|\bpacking\b|Liger|CausalLM|LanguageModel")
PACE = 0.03
"""Largest difference between kernels of the step without a profiler and of the recording."""
ROUNDED = 0.006
"""Rounding error of a number with three digits, and a little more."""


def contradictions(diagnosis: Diagnosis) -> list[str]:
    """Every sentence that the diagnosis itself contradicts."""
    found = [*_rest(diagnosis), *_parts(diagnosis), *_numbered(diagnosis), *_language(diagnosis)]
    for finding in diagnosis.findings:
        found += _totals(diagnosis, finding)
    return found


def value(text: str) -> float:
    return float(text.replace(",", ""))


def largest_of(idle: Mapping[str, float]) -> tuple[str, float]:
    """The cause that the sentence names, and what it counts: the largest of those that count together, with them."""
    pooled = sum(idle.get(cause, 0) for cause in BY_CPU)
    first = max(idle, key=lambda cause: (pooled if cause in BY_CPU else idle[cause], idle[cause]))
    return first, pooled if first in BY_CPU else idle[first]


def _rest(diagnosis: Diagnosis) -> Iterator[str]:
    """What most of the rest is spent on is the largest cause of idle time, and half of it at least."""
    match = REST.search(diagnosis.verdict.summary)
    if match is None:
        return
    devices = diagnosis.devices_estimated or diagnosis.devices
    busiest = max(devices, key=lambda d: sum((d.compute_ns, d.communication_ns, d.copy_ns)))
    idle = {one.cause: one.ns for one in busiest.idle_by_cause}
    (first, part), whole = largest_of(idle), sum(idle.values())
    if match["what"].startswith(COMPILES):
        part = sum(idle.get(cause, 0) for cause in (*BY_CPU, "slow_call"))
    elif not match["what"].startswith(SUBJECTS[first]):
        yield f"{match[0]!r}, but most is {first}"
    if match[2] is None and part < (0.5 - ROUNDED) * whole:
        yield f"{match[0]!r}, which is {100 * part / whole:.0f} % of it"
    if match[2] is not None and part > (0.5 + ROUNDED) * whole:
        yield f"{match[0]!r} is most of it"


def _totals(diagnosis: Diagnosis, finding: Finding) -> Iterator[str]:
    """The parts of the program that a finding names are distinct, and contain no more than its total; each statement of
    a finding for several fixes has its own."""
    begins = [at for at, one in enumerate(finding.evidence) if one.start_ns is None] or [0]
    for at, end in pairwise((*begins, len(finding.evidence))):
        yield from _total(finding, finding.evidence[at].text, finding.evidence[at:end])


def _total(finding: Finding, statement: str, evidence: Sequence[Evidence]) -> Iterator[str]:
    """As above, of one statement and its places."""
    places = [one for one in evidence if one.start_ns is not None]
    for place in places:
        alone = LONGEST.search(place.text)
        if alone and f"{alone[1]} ms" != duration(place.ns or 0):
            yield f"{finding.id}: {place.text!r}, which is a place of {(place.ns or 0) / 1e6:g} ms"
    parts = [one for one in places if one.part is not None]
    if len({one.part for one in parts}) < len(parts):
        yield f"{finding.id}: leads more than once to {[one.part for one in parts]}"
    said = re.split("would take|usual", statement)[0]
    totals = [value(m[1]) for m in re.finditer(rf"({NUMBER})(?: of {NUMBER})? ms", said)]
    whole = sum(one.part_ns or 0 for one in parts) / 1e6
    if totals and whole > max(totals) * (1 + PACE) + 0.5:
        yield f"{finding.id}: its parts hold {whole:g} ms a step: {statement!r}"


def _parts(diagnosis: Diagnosis) -> Iterator[str]:
    """Nothing is more than what it is a part of."""
    for text in (diagnosis.verdict.summary, *_statements(diagnosis)):
        for match in OF.finditer(text):
            if value(match[1]) > value(match[2]) * (1 + ROUNDED):
                yield f"{match[0]!r} in {text!r}"
        for share in re.findall(rf"({NUMBER}) %", text):
            if value(share) > 100:
                yield f"{share} % in {text!r}"


def _numbered(diagnosis: Diagnosis) -> Iterator[str]:
    """One GPU and one rank have no numbers, and no others."""
    ranks = diagnosis.environment.world_size or 1
    talks = any(device.communication_ns for device in diagnosis.devices)
    if ranks > 1 or talks or len(diagnosis.devices) != 1 or diagnosis.ranks:
        return
    places = [one.where or "" for finding in diagnosis.findings for one in finding.evidence]
    for text in (*_said(diagnosis), *places):
        if NUMBERED.search(text):
            yield f"of several GPUs or ranks: {text!r}"


def _language(diagnosis: Diagnosis) -> Iterator[str]:
    """Tokens and advice for language models, of a model that is not trained on tokens."""
    case = analysis_of(diagnosis)
    if case is None or case.trains_on_tokens:
        return
    considered = [f"{one.title}: {one.reason}" for one in diagnosis.considered]
    for text in (*_said(diagnosis), *(finding.fix for finding in diagnosis.findings), *considered):
        if LANGUAGE.search(text):
            yield f"of language: {text!r}"


def _statements(diagnosis: Diagnosis) -> list[str]:
    return [one.text for finding in diagnosis.findings for one in finding.evidence if one.start_ns is None]


def _said(diagnosis: Diagnosis) -> list[str]:
    titles = [finding.title for finding in diagnosis.findings]
    screen = [line for line in plain(diagnosis, 160).splitlines() if not line.startswith("  kernels")]
    messages = [issue.message for issue in diagnosis.quality.issues]
    return [diagnosis.verdict.summary, *titles, *_statements(diagnosis), *messages, *screen]
