"""Whether two checkouts say the same about the same recordings, byte for byte.

    python -m benchmarks.same_json OTHER_CHECKOUT [--shared FOLDER] [--only TEXT] [--jobs 2] [--added]
                                [--keep FOLDER]

Each checkout, in a separate process, writes what it says about every recording of this one (tests/data, scenarios, and
FOLDER/traces if it exists): the diagnosis, its printed form, and its projection to three GPUs; and
of every pair of recordings in PAIRS and of every scenario's fix the comparison. What differs is printed, each key with
both values, and the exit code is 1. `--keep` names a folder for the texts: those of a clean checkout whose commit
is there already are not made again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GPUS = ("RTX PRO 6000", "H100 SXM", "B200")
PAIRS = (("tiny", "tiny.compile"), ("tiny", "tiny.graphs"), ("checkpoint_tiny", "tiny"), ("moe_small", "moe_big"))
"""Of tests/data/pairs, compared with each other."""
SHOWN = 12
"""Most differences that are printed per text."""


def recordings(shared: Path | None) -> Iterator[tuple[str, Path]]:
    """Name and path of every recording: runs as their folder, ranks of one training as theirs, other traces as
    files."""
    roots = {"tests": ROOT / "tests" / "data", "scenarios": ROOT / "scenarios"}
    if shared is not None:
        roots["shared"] = shared / "traces"
    for label, root in roots.items():
        folders = {path.parent for path in root.rglob("manifest.json")}
        ranked = {path.parent for path in root.rglob("*rank*.json.gz") if path.parent.name.startswith(_OF_RANKS)}
        files = [
            path
            for ending in ("*.json.gz", "*.sqlite.gz")
            for path in root.rglob(ending)
            if not {path.parent, *path.parents} & (folders | ranked)
        ]
        for path in sorted({*folders, *ranked, *files}):
            yield f"{label}/{path.relative_to(root)}", path


_OF_RANKS = ("param_dlrm", "hta_128rank")


def comparisons() -> Iterator[tuple[str, Path, Path]]:
    """Name and both recordings of everything that is compared."""
    data = ROOT / "tests" / "data" / "pairs"
    for a, b in PAIRS:
        yield f"compare/{a}+{b}", data / f"{a}.json.gz", data / f"{b}.json.gz"
    for fixed in sorted((ROOT / "scenarios").glob("*/fixed")):
        yield f"compare/{fixed.parent.name}", fixed.parent / "recording", fixed


def write(jobs: list[tuple[str, str, list[str]]], folder: Path) -> None:
    """In a process of the checkout: one file for each text, or the error in its place."""
    import gpuprof
    from gpuprof.diagnosis.written.diagnosis_json import dumps
    from gpuprof.report.terminal.terminal import render

    of_comparison = _writer("gpuprof.diagnosis.comparison.comparison")
    of_projection = _writer("gpuprof.projection.projection")

    def text(make: Any) -> str:
        try:
            return make()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    for kind, name, paths in jobs:
        if kind == "compare":
            texts = {"comparison.json": text(lambda paths=paths: of_comparison(gpuprof.compare(paths[0], paths[1])))}
        else:
            try:
                found = gpuprof.diagnose(paths[0])
            except Exception as error:
                texts = {"diagnosis.json": f"{type(error).__name__}: {error}"}
            else:
                texts = {
                    "diagnosis.json": dumps(found),
                    "terminal.txt": _printed(render(found, 100, verbose=True)),
                    "projection.json": text(lambda found=found: of_projection(gpuprof.project(found, GPUS))),
                }
        own = folder / folder_of(name)
        own.mkdir()
        for file, said in texts.items():
            # Texts that are kept may be compared with those of a checkout elsewhere.
            (own / file).write_text(said.replace(f"{ROOT}/", ""), encoding="utf-8")


def _writer(module: str) -> Any:
    """What writes the documents of a module's results; older checkouts have it in a module of its own."""
    kind = getattr(importlib.import_module(module), "DOCUMENT", None)
    return importlib.import_module(f"{module}_json").dumps if kind is None else kind.dumps


def _printed(made: Any) -> str:
    from rich.console import Console

    console = Console(width=100, no_color=True, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(made)
    # The line of the source shortens the path to what fits.
    return "".join(line for line in console.export_text().splitlines(True) if not line.startswith("  source"))


def folder_of(name: str) -> str:
    """Where the texts of a recording are kept."""
    return name.replace("/", "~")


def texts_of(checkout: Path, folder: Path, jobs: list[tuple[str, str, list[str]]], processes: int) -> None:
    """Has a checkout write its texts into a folder, its own code first on the path."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [job for job in jobs if not (folder / folder_of(job[1])).exists()]
    environment = os.environ | {"PYTHONPATH": str(checkout), "GPUPROF_SAME_JSON": str(folder)}
    command = [sys.executable, str(Path(__file__).resolve())]

    def one(part: list[tuple[str, str, list[str]]]) -> None:
        subprocess.run(
            command, input=json.dumps(part), text=True, cwd=checkout, env=environment, check=True, stdout=sys.stderr
        )

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(one, (jobs[i::processes] for i in range(processes))))


def differences(a: Any, b: Any, where: str = "", added: bool = False) -> Iterator[str]:
    """Every key at which two JSON values differ, with both; `added`: keys that only the second has count, too."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in dict.fromkeys([*a, *(b if added else ())]):
            yield from differences(a.get(key, "(none)"), b.get(key, "(none)"), f"{where}.{key}", added)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from differences(one, other, f"{where}[{i}]", added)
    elif a != b:
        yield f"{where}: {_short(a)} → {_short(b)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:157]}…"


def compared(before: Path, after: Path, added: bool) -> Iterator[tuple[str, list[str]]]:
    """Each text of one recording that is not the same, with what differs; unless `added`, keys that only one before
    lacks are passed over."""
    for name in sorted({path.name for folder in (before, after) for path in folder.iterdir()}):
        a, b = before / name, after / name
        if not (a.exists() and b.exists()):
            yield name, ["made by one of the two only"]
            continue
        one, other = a.read_text(encoding="utf-8"), b.read_text(encoding="utf-8")
        if one == other:
            continue
        try:
            found = list(differences(json.loads(one), json.loads(other), added=added))
            if found or added:
                yield name, found or ["order of keys or white space"]
        except json.JSONDecodeError:
            pairs = zip(one.splitlines(), other.splitlines(), strict=False)
            yield name, [f"{x.strip()} → {y.strip()}" for x, y in pairs if x != y] or ["number of lines"]


def state(checkout: Path) -> str | None:
    """The commit of a clean checkout, for the name of a folder that may be used again; None where there are changes."""
    try:
        commit, changed = (
            subprocess.run(["git", *words], cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "gpuprof"))
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return None if changed else commit[:12]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, help="the checkout to compare with")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--only", default="", help="recordings whose name holds this")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--added", action="store_true", help="keys that only this checkout writes differ, too")
    parser.add_argument("--keep", type=Path, help="folder for the texts")
    asked = parser.parse_args()
    shared = asked.shared if asked.shared.is_dir() else None
    jobs = [("diagnose", name, [str(path)]) for name, path in recordings(shared) if asked.only in name]
    jobs += [("compare", name, [str(a), str(b)]) for name, a, b in comparisons() if asked.only in name]
    with tempfile.TemporaryDirectory() as scratch:
        keep = asked.keep or Path(scratch)
        made = []
        for side, checkout in (("before", asked.other.resolve()), ("after", ROOT)):
            known = state(checkout)
            folder = keep / (known or f"{side}-{hashlib.sha256(os.urandom(8)).hexdigest()[:8]}")
            print(f"{side}: {checkout} ({known or 'with changes'})", file=sys.stderr)
            texts_of(checkout, folder, jobs, asked.jobs)
            made.append(folder)
        texts = found = 0
        for _, name, _ in jobs:
            before, after = (folder / folder_of(name) for folder in made)
            texts += len(list(after.iterdir()))
            for file, what in compared(before, after, asked.added):
                found += 1
                print(f"{name}, {file}: {len(what)} differ")
                for line in what[:SHOWN]:
                    print(f"    {line}")
    print(f"{found} of {texts} texts differ, of {len(jobs)} recordings and comparisons")
    return 1 if found else 0


if __name__ == "__main__":
    if "GPUPROF_SAME_JSON" in os.environ:
        sys.path[0] = str(Path.cwd())  # the checkout's, not this file's folder
        write(
            [(kind, name, paths) for kind, name, paths in json.load(sys.stdin)], Path(os.environ["GPUPROF_SAME_JSON"])
        )
    else:
        sys.exit(main())
