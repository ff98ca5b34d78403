"""What a campaign leaves: pieces with recordings, a table of its processes' times, and truth.json of each program."""

from __future__ import annotations

import io
import json
import lzma
import statistics
import sys
import tarfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from scenarios.catalogue import ROOT
from scenarios.support.run import SETTLE, SYNCHRONISED

PIECE, PIECES = 15 << 20, 4
"""Bytes of a file with recordings, and the greatest number of these files; other recordings stay where they were
packed."""
LAST_LINES = 15
KEPT = (
    *("fix", "free_ms", "spread", "steps", "synchronised_ms", "tokens", "joules", "importing"),
    *("allocated_mib", "reserved_mib", "peak_mib"),
)
"""What truth.json keeps about a process."""
HOW = (
    f"Each process: {SETTLE} steps to settle, free-running steps for some seconds (free_ms: the mean of them; spread:"
    " half the range of the middle eight tenths of blocks of them, over that mean; joules: of the GPU, by its energy"
    f" counter), {SYNCHRONISED} each closed by a synchronisation (synchronised_ms). Fresh processes took turns, as"
    " it is and with each fix; no profiler was in any of them. importing: processes that loaded packages at low"
    " priority at the same time."
)


def put(packed: Path, out: Path) -> str:
    """Adds a packed recording to the first piece that has room. Returns what to say."""
    size = packed.stat().st_size
    for number in range(PIECES):
        piece = out / f"piece-{number}.tar"
        if size + (piece.stat().st_size if piece.exists() else 0) <= PIECE:
            with tarfile.open(piece, "a") as tar:
                tar.add(packed, packed.name)
            return f"packed {packed.name}, {size / 2**20:.1f} MiB, into {piece.name}"
    return f"no room for {packed.name}, {size / 2**20:.1f} MiB: it stays at {packed}"


def pack(folder: Path, target: Path) -> None:
    """Packs a run folder as .tar.xz, with its traces decompressed: xz compresses them better than gzip."""
    import gzip

    part = target.with_suffix(".part")
    with lzma.open(part, "wb", preset=2) as file, tarfile.open(fileobj=file, mode="w|") as tar:
        for path in sorted(folder.rglob("*")):
            if not path.is_file():
                continue
            name = f"{folder.name}/{path.relative_to(folder)}"
            if path.name.endswith(".json.gz"):
                content = gzip.decompress(path.read_bytes())
                entry = tarfile.TarInfo(name.removesuffix(".gz"))
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
            else:
                tar.add(path, name)
    part.rename(target)


def unpack(piece: Path, out: Path) -> list[str]:
    """Unpacks the run folders of a piece, and compresses their traces as gpuprof does. Returns their names."""
    import gzip

    names = []
    with tarfile.open(piece) as outer:
        for member in outer.getmembers():
            inside = outer.extractfile(member)
            assert inside is not None
            with tarfile.open(fileobj=io.BytesIO(lzma.decompress(inside.read()))) as tar:
                tar.extractall(out, filter="data")
            names.append(member.name.removesuffix(".tar.xz"))
    for path in out.glob("*/trace.rank*.json"):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), 6))
        path.unlink()
    return names


def spread(each_ms: list[float]) -> float:
    """Half the range of the middle eight tenths of at most ten blocks of steps, over their mean."""
    size = max(1, len(each_ms) // 10)
    blocks = [statistics.mean(each_ms[i : i + size]) for i in range(0, len(each_ms) - size + 1, size)]
    if len(blocks) < 3:
        return 0.0
    ordered = sorted(blocks)
    cut = len(ordered) // 10
    return (ordered[-1 - cut] - ordered[cut]) / 2 / statistics.mean(blocks)


def timing_of(log: Path) -> dict[str, Any] | None:
    """The times that a process printed; None if it printed none."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    entry = [line for line in lines if line.startswith("timing {")]
    return json.loads(entry[-1].removeprefix("timing ")) if entry else None


def last_lines(log: Path, count: int = LAST_LINES) -> list[str]:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return [line[:400] for line in lines if line.strip()][-count:]


def table(results: Path) -> list[str]:
    """Each program and fix with its step times and its gain: the median process of the unmodified program over that
    with the fix."""
    steps: dict[tuple[str, str], list[float]] = {}
    for line in results.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "fix" in entry:
            steps.setdefault((entry["program"], entry["fix"]), []).extend(
                [entry["free_ms"]] if "free_ms" in entry else []
            )
    lines = []
    for (program, fix), found in steps.items():
        base = steps.get((program, ""), [])
        gain = f"{statistics.mean(base) / statistics.mean(found):5.2f}×" if base and found and fix else ""
        times = " ".join(f"{ms:.2f}" for ms in found) or "failed"
        lines.append(f"{program:34} {fix or 'as it is':22} {gain:>7}  {times}")
    return lines


def truths(results: Path) -> list[str]:
    """Writes truth.json for each program in the results, a file from one machine. Returns their names.

    An existing truth.json keeps its processes that were timed on the same GPUs with the same versions; where the new
    ones were timed alone, only those that were, too.
    """
    about: dict[str, Any] = {}
    processes: dict[str, list[dict[str, Any]]] = {}
    for line in results.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "machine" in entry:
            about = {"machine": entry["machine"], "versions": entry["versions"]}
        elif "free_ms" in entry:
            processes.setdefault(entry["program"], []).append({key: entry.get(key) for key in KEPT})
    for name, timed in processes.items():
        path = ROOT / name / "truth.json"
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if all(before.get(key) == value for key, value in about.items()):
            alone = not any(process["importing"] for process in timed)
            kept = [process for process in before["processes"] if not (alone and process["importing"])]
            timed = kept + [process for process in timed if process not in kept]
        head = {"how": HOW, "date": f"{datetime.now(timezone.utc):%Y-%m-%d}", **about}
        lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
        body = ",\n".join(f"  {json.dumps(process)}" for process in timed)
        path.write_text("\n".join(["{", *lines, f' "processes": [\n{body}\n ]', "}", ""]), encoding="utf-8")
    return sorted(processes)


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
