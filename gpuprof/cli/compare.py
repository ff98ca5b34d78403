"""`gpuprof compare`: explains where the difference between two recordings comes from, as text or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.diagnose import UNUSABLE
from gpuprof.cli.shared.option_types import WholeNumber
from gpuprof.cli.shared.output import GATE_FAILED, say
from gpuprof.cli.shared.output_paths import check_place
from gpuprof.cli.shared.printing import OfComparison, gates, put
from gpuprof.cli.shared.recordings import RECORDING, TOP_IN_JSON, diagnose_given, given
from gpuprof.diagnosis.asked import Asked

if TYPE_CHECKING:
    from gpuprof.cli.shared.comparison_gates import ChangeGate
    from gpuprof.diagnosis.comparison.comparison import Comparison


def _gate(text: str) -> ChangeGate:
    from gpuprof.cli.shared.comparison_gates import parse

    return parse(text)


@click.command(short_help="Explain the difference between two runs.")
@click.argument("a", type=RECORDING)
@click.argument("b", type=RECORDING)
@click.option("--json", is_flag=True, help="Print the whole comparison as JSON.")
@click.option("--markdown", is_flag=True, help="Print it as Markdown, for a comment on a pull request.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write the comparison as an HTML page.",
)
@click.option("--top", type=WholeNumber(1), metavar="N", help="List N kernels and CPU ops (default 5; 10 in JSON).")
@click.option("--step", metavar="REGEX", help="Name of the range or op that is a step, in both; detected by default.")
@click.option("--skip", type=WholeNumber(0), default=0, metavar="N", help="Skip the first N steps of both.")
@click.option(
    "--fail-on", multiple=True, callback=gates(_gate), metavar="METRIC:LIMIT",
    help="Exit 1 if METRIC of B exceeds that of A by more than LIMIT: step_time:5% (only if the difference is "
    "significant), token_time:5%, sample_time:5%, busy_time:5%, idle_time:10%, kernels:5%, syncs:10% or "
    "peak_memory:5%. Repeatable.",
)  # fmt: skip
def command(
    a: str,
    b: str,
    json: bool,
    markdown: bool,
    html: Path | None,
    top: int | None,
    step: str | None,
    skip: int,
    fail_on: tuple[ChangeGate, ...],
) -> int:
    """Explain where the step times of A and B differ, and why.

    A and B are anything that gpuprof diagnose accepts: run folders, traces, Nsight Systems exports, folders of ranks.
    A is before, B is after: a negative difference means that B is faster.
    """
    from gpuprof import compare

    if markdown and json:
        raise click.UsageError("--json and --markdown exclude each other")
    before, after = given(a), given(b)
    if html is not None:
        check_place(html, (*before.files, *after.files), "--html")
    asked = Asked(step, skip)
    one = diagnose_given(before, asked)
    other = one if before == after else diagnose_given(after, asked)
    comparison = compare(one, other, top=top or TOP_IN_JSON)
    put(OfComparison(), comparison, json, top, html, markdown)
    return max((_check(gate, comparison) for gate in fail_on), default=0)


def _check(gate: ChangeGate, comparison: Comparison) -> int:
    """0 if the gate holds. A gate that cannot be checked must not pass."""
    from gpuprof.cli.shared.comparison_gates import GateOutcome, judge

    outcome, text = judge(gate, comparison)
    if outcome is GateOutcome.HOLDS:
        return 0
    say(text)
    return GATE_FAILED if outcome is GateOutcome.FAILS else UNUSABLE
