"""Damages files of every kind that gpuprof reads, and reads them: `python -m helpers.mutations KIND COUNT FOLDER`.

Prints a line of JSON: how many were read, how many were refused in one line, what crashed, and the largest memory of
the process. A case that takes longer than LIMIT_S ends the process by SIGALRM; its number is in FOLDER/case.
"""

from __future__ import annotations

import gzip
import json
import pickle
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from gpuprof.record.windows.memory import most_resident_bytes
from helpers.paths import ROOT

LIMIT_S = 30
DATA = ROOT / "tests" / "data"
Read = Callable[[Path], object]
NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]
JUNK = [None, True, -1, 0, 10**40, 1e308, float("nan"), "", "x" * 500, "\x1b[2J\u202e", [], {}, [[]], {"a": {}}, 2**63]


def damage_bytes(data: bytes, rng: random.Random) -> bytes:
    """One to four kinds of damage to any file."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(found) or 1)
        how = rng.randrange(7)
        if how == 0 and found:
            found[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            del found[at : at + rng.choice([1, 8, 1000])]
        elif how == 2:
            found[at:at] = rng.randbytes(rng.choice([1, 8, 100]))
        elif how == 3:
            found[at:at] = found[at : at + rng.choice([8, 200, 5000])]
        elif how == 4:
            size = rng.choice([1, 2, 4, 8])
            number = rng.choice(NUMBERS) % (1 << 8 * size)
            found[at : at + size] = number.to_bytes(size, rng.choice(["little", "big"]))
        elif how == 5:
            found[at : at + 64] = bytes(len(found[at : at + 64]))
        elif rng.random() < 0.3:
            del found[at:]
    return bytes(found)


def damage_document(document: object, rng: random.Random) -> object:
    """Puts junk in one to three places of a document."""
    for _ in range(rng.randint(1, 3)):
        here, parent, key = document, None, None
        while isinstance(here, (dict, list)) and here and (parent is None or rng.random() < 0.85):
            parent, key = here, rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
            here = here[key]  # type: ignore[index]
        if parent is not None:
            parent[key] = rng.choice(JUNK)  # type: ignore[index]
    return document


# -- one kind after the other: what is damaged, and what reads it


def traces(folder: Path) -> tuple[list[bytes], str, Read]:
    """Small traces of torch.profiler, diagnosed."""
    import gpuprof

    texts = []
    for path in sorted(DATA.glob("*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        events = document["traceEvents"]
        document["traceEvents"] = events[:: max(1, len(events) // 300)]
        texts.append(json.dumps(document).encode())
    return texts, "trace.json", gpuprof.diagnose


def exports(folder: Path) -> tuple[list[bytes], str, Read]:
    """Exports of Nsight Systems, diagnosed."""
    import gpuprof

    found = [path.read_bytes() for path in sorted(DATA.glob("nsys/*/*")) if path.suffix == ".sqlite"]
    found += [gzip.decompress(path.read_bytes()) for path in sorted(DATA.glob("nsys/*/*.sqlite.gz"))]
    return sorted(found, key=len)[:3], "export.sqlite", gpuprof.diagnose


def snapshots(folder: Path) -> tuple[list[bytes], str, Read]:
    """Memory snapshots, analysed."""
    from benchmarks.memory_snapshot import Allocator
    from gpuprof.memory.analyse import analyse
    from gpuprof.memory.snapshot import read_snapshot

    allocator = Allocator()
    stack = [{"name": "forward", "filename": "train.py", "line": 3}]
    for size in (4096, 512, 1 << 20):
        address = allocator.alloc(size, stack)
        allocator.alloc(size, stack)
        allocator.free(address)
    kept = gzip.decompress((DATA / "snapshots" / "activations.pickle.gz").read_bytes())
    return [pickle.dumps(allocator.snapshot()), kept], "memory.pickle", lambda path: analyse(read_snapshot(path))


def digests(folder: Path) -> tuple[list[bytes], str, Read]:
    """Digests of ranks, read back and replayed with that of another rank."""
    from gpuprof.diagnosis.ranks.rank_digest import digest_of_trace
    from gpuprof.diagnosis.ranks.ranks import gang_of
    from gpuprof.ranks import storage
    from gpuprof.tracefile.read import read_trace
    from helpers.rank_program import RankProgram, write

    one, other = (digest_of_trace(path, read_trace) for path in write(folder, [RankProgram(), RankProgram()])[:2])

    def answer(path: Path) -> None:
        digest = storage.from_bytes(path.read_bytes(), path.name)
        if digest is not None:
            gang_of([digest, other], ["a", "b"])  # type: ignore[list-item]

    return [storage.to_bytes(one)], "rank.npz", answer  # type: ignore[arg-type]


def dumps(folder: Path) -> tuple[list[bytes], str, Read]:
    """Flight recorder dumps of NCCL, judged."""
    from gpuprof.hang.hang_json import dumps as text_of
    from gpuprof.hang.judge import judge
    from gpuprof.hang.load_states import states_of

    def entry(number: int) -> dict:
        return {
            "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
            "p2p_seq_id": 0, "op_id": number, "profiling_name": "nccl:all_reduce", "time_created_ns": 10**12 + number,
            "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"],
            "state": "completed" if number < 5 else "started", "retired": number < 5, "timeout_ms": 600_000,
            "is_p2p": False, "frames": [{"name": "step", "filename": "/home/me/train.py", "line": 9}],
        }  # fmt: skip

    def document(entries: int) -> dict:
        group = {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}}
        return {"version": "2.10", "pg_config": group, "pg_status": {}, "entries": [entry(k) for k in range(entries)]}

    other = folder / "nccl_trace_rank_1"
    other.write_bytes(pickle.dumps(document(4)))

    def answer(path: Path) -> None:
        states, now = states_of([str(path), str(other)])
        text_of(judge(states, now), states)

    return [pickle.dumps(document(6)), json.dumps(document(6)).encode()], "nccl_trace_rank_0", answer


def runs(folder: Path) -> tuple[list[bytes], str, Read]:
    """Folders of runs, one file of which is damaged, diagnosed. Each file is damaged in turn."""
    import gpuprof
    from helpers.make_run import usual_run

    whole = usual_run().write(folder / "whole")
    names = sorted(path.name for path in whole.iterdir() if path.is_file())

    def answer(path: Path) -> None:
        number, _, content = path.read_bytes().partition(b"\0")
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        (run / names[int(number)]).write_bytes(content)
        gpuprof.diagnose(run)

    return [b"%d\0" % k + (whole / name).read_bytes() for k, name in enumerate(names)], "one.run", answer


KINDS = {one.__name__: one for one in (traces, exports, runs, digests, snapshots, dumps)}


def damage_arrays(data: bytes, rng: random.Random) -> bytes:
    """An .npz, whole as an archive, whose arrays hold other numbers, or have another length or type."""
    import io

    import numpy as np

    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(sorted(arrays))
        array = arrays[name].copy()
        how = rng.randrange(5)
        if how < 2 and array.size and array.dtype.kind in "iuf":
            number = rng.choice([-1, 0, 1, 1000, 2**31 - 1, 2**62, -(2**62)])
            array.reshape(-1)[rng.randrange(array.size)] = np.array([number]).astype(array.dtype)[0]
        elif how == 2 and array.ndim:
            array = array[: rng.randrange(len(array) + 1)]
        elif how == 3:
            array = (
                array.astype(rng.choice(["i1", "f4", "f8", "U3", "i8"]), casting="unsafe")
                if array.dtype.kind in ("iuf")
                else array
            )
        else:
            array = np.concatenate([array, array]) if array.ndim else array
        arrays[name] = array
    if rng.random() < 0.2:
        del arrays[rng.choice(sorted(arrays))]
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def mutated(data: bytes, kind: str, rng: random.Random) -> bytes:
    """Bytes, or for documents in half of the cases values."""
    prefix = b""
    if kind == "runs":
        prefix, _, data = data.partition(b"\0")
        prefix += b"\0"
    if kind == "digests" and rng.random() < 0.7:
        return damage_arrays(data, rng)
    if kind in ("traces", "dumps", "snapshots", "runs") and rng.random() < 0.5:
        try:
            if data[:1] == b"\x80":
                return pickle.dumps(damage_document(pickle.loads(data), rng))
            lines = data.splitlines() if kind == "runs" else [data]
            at = rng.randrange(len(lines))
            lines[at] = json.dumps(damage_document(json.loads(lines[at]), rng)).encode()
            return prefix + b"\n".join(lines)
        except (ValueError, IndexError, pickle.PicklingError):
            pass
    return prefix + damage_bytes(data, rng)


def main(kind: str, count: int, folder: Path) -> None:
    """Of the script."""
    from gpuprof.errors import GpuprofError

    originals, name, read = KINDS[kind](folder)
    done = {"kind": kind, "cases": count, "read": 0, "refused": 0, "crashed": [], "longest_s": 0.0}
    path = folder / name
    for case in range(count):
        rng = random.Random(f"{kind} {case}")
        path.write_bytes(mutated(originals[case % len(originals)], kind, rng))
        (folder / "case").write_text(str(case))
        signal.alarm(LIMIT_S)
        try:
            read(path)
            done["read"] += 1
        except GpuprofError as error:
            done["refused"] += 1
            if "\n" in str(error):
                done["crashed"].append(f"{case}: more than one line: {error}")
        except BaseException as error:
            done["crashed"].append(f"{case}: {type(error).__name__}: {str(error)[:200]}")
        done["longest_s"] = max(done["longest_s"], LIMIT_S - signal.alarm(0))
    done["peak_mib"] = most_resident_bytes() >> 20
    print(json.dumps(done))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
