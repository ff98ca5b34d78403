"""`gpuprof gpus`: lists the GPUs that gpuprof knows, and measures the one in this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprof.cli.shared.output import say, show, write
from gpuprof.cli.target_python import target_python
from gpuprof.errors import GpuprofError
from gpuprof.units import Cells, Convention, Ratio

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpuprof.costs.ceilings import Ceilings
    from gpuprof.costs.hardware import Gpu
    from gpuprof.costs.measured_rates import Measurement

SCHEMA = "gpuprof.gpus/1"
_TERA: Convention[Ratio] = 1e12
_GIGA: Convention[Ratio] = 1e9
_GUTTER: Convention[Cells] = 2
_SOURCE_WIDTH: Convention[Cells] = 16
"""Width from which the column of sources is shown."""


@click.command(short_help="List known GPUs, or measure the one in this machine.")
@click.argument("name", nargs=-1)
@click.option("--json", is_flag=True, help="Print everything known as JSON.")
@click.option("--measure", is_flag=True, help="Measure the first GPU of this machine (needs torch, takes seconds).")
@click.option("--save", is_flag=True, help="With --measure: use the measured rates as ceilings from now on.")
@click.option(
    "--gpus", type=click.Path(path_type=Path, dir_okay=False), envvar="GPUPROF_GPUS", metavar="FILE",
    help="CSV file with GPUs that adds to or overrides the built-in table.",
)  # fmt: skip
def command(name: tuple[str, ...], json: bool, measure: bool, save: bool, gpus: Path | None) -> int:
    """List the GPUs that gpuprof knows: memory, dense rates, power, and the confidence of each row.

    With NAME (or part of a name): the matching GPUs; a single match is shown in full. Rates are dense (no sparsity).
    """
    from gpuprof.costs.hardware import load_gpus

    known = load_gpus(str(gpus) if gpus else None)
    if save and not measure:
        raise click.UsageError("--save needs --measure")
    if measure:
        if name:
            raise click.UsageError("--measure measures the GPU of this machine and takes no NAME")
        return _measure(known, save, json)
    found = _matching(known, " ".join(name))
    if json:
        _write_json({"gpus": [_facts(gpu) for gpu in found]})
    elif len(found) == 1:
        show(lambda width: _card(found[0]))
    else:
        show(lambda width: _table(found, width))
    return 0


def _matching(known: tuple[Gpu, ...], text: str) -> list[Gpu]:
    """GPUs with that name, else those whose name contains it; ignores blanks and hyphens: `rtx4090` is an RTX 4090."""
    from gpuprof.costs.hardware import find

    if not text:
        return list(known)
    exact = find(text, None, known)
    if exact is not None:
        return [exact]
    wanted = _squeezed(text)
    found = [
        gpu for gpu in known if any(wanted in _squeezed(n) for n in (gpu.name, gpu.architecture, *gpu.driver_names))
    ]
    if not found:
        raise GpuprofError(f"unknown GPU {text!r}; gpuprof gpus lists all, --gpus FILE adds more")
    return found


def _squeezed(name: str) -> str:
    return re.sub(r"[\s_-]", "", name.lower())


def _measure(known: tuple[Gpu, ...], save: bool, json: bool) -> int:
    from gpuprof.costs.hardware import find
    from gpuprof.costs.measured_rates import measure, save_measurement

    say("measuring matrix multiplications, copies and launches; nothing else should use the GPU meanwhile")
    found = measure(target_python())
    if json:
        from dataclasses import asdict

        _write_json({"measurement": asdict(found)})
    else:
        gpu = find(found.device_name, found.memory_bytes, known)
        show(lambda width: _measured(found, gpu))
    if save:
        say(f"saved in {save_measurement(found)}: used as ceilings from now on")
    return 0


def _write_json(content: dict[str, Any]) -> None:
    import msgspec

    write(msgspec.json.format(msgspec.json.encode({"schema": SCHEMA, **content}), indent=2).decode() + "\n")


def _facts(gpu: Gpu) -> dict[str, Any]:
    """Everything known about one GPU, including its ceilings."""
    from dataclasses import asdict

    limits = _ceilings(gpu)
    return {
        **asdict(gpu),
        "host_link_bytes_per_s": gpu.host_link_bytes_per_s,
        "ceilings": {
            "flops": limits.flops,
            "memory_bytes_per_s": limits.memory_bytes_per_s,
            "link_bytes_per_s": limits.link_bytes_per_s,
            "launch_floor_ns": limits.launch_floor_ns,
            "source": limits.source,
        },
    }


def _ceilings(gpu: Gpu) -> Ceilings:
    from gpuprof.costs.ceilings import ceilings_of, measurement_of

    return ceilings_of(gpu, measurement_of(gpu))


def _table(gpus: list[Gpu], width: int) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    titles = ("GPU", "memory", "half TFLOP/s", "GB/s", "TDP", "sure", "source")
    rows = [
        (
            gpu.name,
            f"{gpu.memory_bytes / _GIGA:,.0f} GB",
            f"{'' if 'bf16' in gpu.dense_flops else 'fp16 '}{_number((gpu.half_flops or 0) / _TERA)}",
            _number(gpu.memory_bytes_per_s / _GIGA),
            f"{gpu.tdp_w:,.0f} W" if gpu.tdp_w else "–",
            gpu.confidence,
            gpu.source,
        )
        for gpu in gpus
    ]
    table = Table(box=None, padding=(0, _GUTTER, 0, 0), show_edge=False, pad_edge=False)
    widths = [max(len(_plain(row[i])) for row in (titles, *rows)) for i in range(len(titles))]
    # The source gets the remaining width, if that is wide enough to read.
    left = width - sum(widths[:-1]) - _GUTTER * len(widths)
    shown = len(titles) if left >= _SOURCE_WIDTH else len(titles) - 1
    widths[-1] = min(widths[-1], left)
    for title, widest in zip(titles[:shown], widths[:shown], strict=True):
        justify = "left" if title in ("GPU", "sure", "source") else "right"
        table.add_column(title, justify=justify, no_wrap=True, width=widest, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(_plain(cell)) for cell in row[:shown]))
    return table


def _card(gpu: Gpu) -> RenderableType:
    """One GPU in full."""
    limits = _ceilings(gpu)
    stated = [f"{dtype} {_number(rate / _TERA)}" for dtype, rate in gpu.dense_flops.items()]
    reached = [f"{dtype} {_number(rate / _TERA)}" for dtype, rate in limits.flops.items()]
    sources = {
        "measured": "measured on this machine",
        "table": f"measured on such a GPU ({gpu.measured_source}), other formats in proportion",
        "stated": "stated rates × usual efficiency",
    }
    sms = f"{gpu.multiprocessors} SMs" if gpu.multiprocessors else ""
    clock = f"{gpu.boost_mhz:,.0f} MHz boost" if gpu.boost_mhz else ""
    l2 = f"L2 {gpu.l2_bytes / 1e6:,.0f} MB" if gpu.l2_bytes else ""
    link = f"{gpu.link_bytes_per_s / _GIGA:,.0f} GB/s both ways" if gpu.link_bytes_per_s else ""
    host = f"{limits.link_bytes_per_s / _GIGA:,.0f} GB/s reached" if limits.link_bytes_per_s else ""
    return _rows(
        gpu.name,
        [
            ("drivers say", ", ".join(gpu.driver_names)),
            ("chip", ", ".join(filter(None, (gpu.architecture, gpu.compute_capability, sms, clock)))),
            ("memory", _memory(gpu, l2)),
            ("dense TFLOP/s", ", ".join(stated)),
            ("ceilings", f"{', '.join(reached)} TFLOP/s, memory {_number(limits.memory_bytes_per_s / _GIGA)} GB/s"),
            ("from", sources[limits.source]),
            ("links", ", ".join(filter(None, (gpu.link.replace("none", ""), link, f"host {gpu.pcie}", host)))),
            ("power", f"{gpu.tdp_w:,.0f} W" if gpu.tdp_w else ""),
            ("confidence", {"A": "A, stated by the maker", "B": "B, derived, or from a single source"}.get(
                gpu.confidence, "C, sources disagree" if gpu.confidence == "C" else gpu.confidence)),
            ("source", gpu.source),
            ("note", gpu.note),
        ],
    )  # fmt: skip


def _memory(gpu: Gpu, l2: str) -> str:
    size = f"{gpu.memory_bytes / _GIGA:,.0f} GB {gpu.memory_type}".strip()
    return ", ".join(filter(None, (size, f"{_number(gpu.memory_bytes_per_s / _GIGA)} GB/s", l2)))


def _measured(found: Measurement, gpu: Gpu | None) -> RenderableType:
    """The measured values next to those of the datasheet."""
    rows = []
    for dtype, rate in found.flops.items():
        stated = gpu.dense_flops.get(dtype) if gpu else None
        share = f"   {100 * rate / stated:.0f} % of {_number(stated / _TERA)}" if stated else ""
        rows.append((dtype, f"{_number(rate / _TERA)} TFLOP/s{share}"))
    share = ""
    if gpu:
        stated = gpu.memory_bytes_per_s
        share = f"   {100 * found.memory_bytes_per_s / stated:.0f} % of {_number(stated / _GIGA)}"
    rows += [
        ("memory", f"{_number(found.memory_bytes_per_s / _GIGA)} GB/s, reads and writes{share}"),
        ("from CPU memory", f"{_number(found.link_bytes_per_s / _GIGA)} GB/s, pinned"),
        ("small op", f"{found.launch_ns / 1e3:.1f} µs of CPU time"),
        ("Python loop", f"{found.host_loop_ns:.0f} ns per iteration"),
        ("taken", f"{found.taken}, torch {found.torch}"),
    ]
    return _rows(found.device_name + ("" if gpu else "   (not in the table of GPUs)"), rows)


def _rows(title: str, rows: list[tuple[str, str]]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 2), show_header=False, show_edge=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, text in rows:
        if text:
            table.add_row(label, Text(_plain(text)))
    return Group(Text(_plain(title), style="bold"), table)


def _plain(text: str) -> str:
    """A name from a user's file, escaped."""
    from gpuprof.report.names import escape

    return escape(text)


def _number(value: float) -> str:
    """`989`, `71.2`, `4,276`."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}"
