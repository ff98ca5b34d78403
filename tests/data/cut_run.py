"""Makes a small run folder that can be published out of one that `gpuprof trace` recorded.

    python tests/data/cut_run.py RUN runs/NAME [--whole] [--all] [--bare PATTERN]

Each rank's trace is cut to the recorded step of middle duration, or of middle size where steps differ; --all keeps all
steps, which a recording wants whose host runs ahead of its GPU: much of a step was launched before it. So that it is
small, left out are the arrows from launch to kernel (correlation ids say the same), some args, and ops inside ops that
launch nothing (the op around them covers their time), but for those that say what a later kernel sends and receives;
--whole leaves all that in. --bare leaves all ops in, but without
args those that lie in ops of certain names, such as dynamo_timed: of code that is being compiled only times count. The
rest of the folder is as it was recorded but for paths, the version of the kernel, and the GPU's UUID.
"""

from __future__ import annotations

import argparse
import json
import re
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path

from cut import CALLS, choose, holds, read, write

UUID = "GPU-00000000-0000-4000-8000-000000000001"
HOME = "/home/user"
ARGS = {
    *("Ev Idx", "Record function id", "External id", "Input Strides", "Concrete Inputs"),
    *("context", "queued", "blocks per SM", "warps per SM", "cbid", "memory bandwidth (GB/s)"),
}
"""Args that no part of a diagnosis comes from, where correlation ids show what launched what."""
LATER = ("gpu", "steps_total", "model", "optimizer", "loader")
"""What a recorder of before 0.1 left out of rank<N>.json where it was not known; null since."""
MOST = 1000
"""Steps that --all keeps."""
BESIDE_NS = 2_000_000_000
"""Of what was sampled before the first step and after the last; a process may have waited for its turn for minutes."""
COMMS = "record_param_comms"
_ARGS = '"args":'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--whole", action="store_true", help="leave nothing out of a step")
    parser.add_argument("--all", action="store_true", help="keep all recorded steps")
    parser.add_argument("--bare", default="", help="keep ops, and no args of those within ops with this in their names")
    args = parser.parse_args()
    args.target.mkdir(parents=True, exist_ok=True)
    ranks = [json.loads(path.read_text()) for path in sorted(args.run.glob("rank*.json"))]
    kept = range(MOST) if args.all else of_middle_size(args.run)  # of all ranks the same
    for rank in ranks:
        name = f"trace.rank{rank['rank']}.json.gz"
        kept, size = cut_trace(args.run / name, args.target / name, args.whole, kept, args.bare)
        window = next(window for window in rank["windows"] if window["window"] == "trace")
        window |= {"first_step": window["first_step"] + kept[0], "steps": len(kept), "bytes": size}
        for key in LATER:
            rank.setdefault(key, None)
    write_rest(args.run, args.target, ranks)


def write_rest(run: Path, target: Path, ranks: list[dict]) -> None:
    """All files of a run but its recordings, `ranks` being what is to stand in rank<N>.json."""
    uuids: dict[str, str] = {}

    def published(uuid: str) -> str:
        return uuids.setdefault(uuid.removeprefix("GPU-"), f"{UUID[:-1]}{len(uuids) + 1}")

    for rank in ranks:
        if rank["gpu"]:  # none where gloo stands in for NCCL
            rank["gpu"]["uuid"] = published(rank["gpu"]["uuid"])
        write_json(target / f"rank{rank['rank']}.json", rank)
    manifest = json.loads((run / "manifest.json").read_text())
    python, *words = manifest["command"]
    manifest["command"] = [neutral(python, ".venv/bin"), *(neutral(word) for word in words)]
    manifest |= {"cwd": HOME, "python": manifest["python"] and neutral(manifest["python"], ".venv/bin")}
    manifest["host"]["platform"] = re.sub(r"(Linux-\d+\.\d+).*-(\w+)", r"\1-\2", manifest["host"]["platform"])
    write_json(target / "manifest.json", manifest)
    (target / "steps.jsonl").write_bytes((run / "steps.jsonl").read_bytes())
    lines = [json.loads(line) for line in (run / "telemetry.jsonl").read_text().splitlines()]
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    begun_ns, ended_ns = steps[0]["unix_ns"] - steps[0]["ns"] - BESIDE_NS, steps[-1]["unix_ns"] + BESIDE_NS
    lines = [line for line in lines if begun_ns <= line["unix_ns"] <= ended_ns]
    for line in lines:
        for gpu in line["gpus"]:
            gpu["uuid"] = published(gpu["uuid"])
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (target / "telemetry.jsonl").write_text(text)


def of_middle_size(run: Path) -> range | None:
    """The recorded step of rank 0 whose tokens are the middle ones; None where all have as many, or it is not known."""
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    tokens = [line["tokens"] for line in lines if line["rank"] == 0 and line["stage"] == "trace"]
    if None in tokens or len(set(tokens)) < 2:
        return None
    middle = sorted(range(len(tokens)), key=lambda i: tokens[i])[len(tokens) // 2]
    return range(middle, middle + 1)


def cut_trace(source: Path, target: Path, whole: bool, kept: range | None, bare: str = "") -> tuple[range, int]:
    """The recorded steps that were kept, counted from 0, and the size of their trace before it was compressed.

    kept: which to keep; None: that of middle duration. bare: as --bare.
    """
    head, events, tail = read(source)
    steps = sorted(
        (e["ts"], e["dur"])
        for _, e in events
        if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep")
    )
    if kept is None:
        middle = sorted(range(len(steps)), key=lambda i: steps[i][1])[len(steps) // 2]
        kept = range(middle, middle + 1)
    kept = kept[: len(steps)]
    chosen = choose(events, kept[0], len(kept), set() if whole and not bare else {"ac2g"}, running=True)
    texts = bared(chosen, bare) if bare else [text for text, _ in chosen] if whole else thin(chosen)
    tail = re.sub(r'("traceName": ")[^"]*/', r"\1", tail)
    text = head + ",".join(texts) + tail
    write(target, text)
    print(f"{target.parent.name}: step {kept[0] + 1} of {len(steps)}, {len(kept)} kept", end=", ")
    print(f"{len(texts):,} of {len(events):,} events, {target.stat().st_size:,} bytes")
    return kept, len(text.encode())


def thin(events: list[tuple[str, dict]]) -> list[str]:
    """The text of the events without ops inside ops that launch nothing, and without some args. Sends and receives
    stay: the kernel of a batch of them is launched later."""
    calls, hosts = defaultdict(list), defaultdict(list)
    for i, (_, e) in enumerate(events):
        category = e.get("cat")
        if category in CALLS:
            calls[e["pid"], e["tid"]].append(e["ts"])
        elif category in ("cpu_op", "user_annotation"):
            hosts[e["pid"], e["tid"]].append((e["ts"], -e["dur"], i))
    gone = set()
    for track, rows in hosts.items():
        times, around = sorted(calls[track]), []
        for begin, minus, i in sorted(rows):
            while around and around[-1][0] <= begin:
                around.pop()
            event = events[i][1]
            is_op = event["cat"] == "cpu_op"
            if is_op and around and around[-1][1] and not holds(times, event) and event["name"] != COMMS:
                gone.add(i)
            else:
                around.append((begin - minus, is_op))
    return [without(text, event) for i, (text, event) in enumerate(events) if i not in gone]


def bared(events: list[tuple[str, dict]], names: str) -> list[str]:
    """The text of the events: no args of ops within ops with `names` in theirs, and of calls that nothing on the GPU
    refers to; of the others not all. What the tracer says of an event that was asked about, not waited for, is left
    out: each try of a kernel asks thousands of times."""
    asked = {e["args"]["correlation"] for _, e in events if e["name"] == "cudaEventQuery"}
    events = [
        (text, e) for text, e in events if not (e.get("cat") == "cuda_sync" and e["args"]["correlation"] in asked)
    ]
    spans = defaultdict(list)
    referred = set()
    for _, e in events:
        args = e.get("args", {})
        if e.get("cat") not in CALLS:
            referred |= {args.get("correlation"), args.get("wait_on_cuda_event_record_corr_id")}
        if e.get("cat") == "cpu_op" and names in e["name"]:
            spans[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    around = {track: merged(sorted(found)) for track, found in spans.items()}
    texts = []
    for text, e in events:
        starts, ends = around.get((e.get("pid"), e.get("tid")), ([], []))
        i = bisect_right(starts, e["ts"]) - 1 if e.get("cat") == "cpu_op" else -1
        lonely = e.get("cat") in CALLS and e["args"].get("correlation") not in referred
        if lonely or (i >= 0 and e["ts"] + e["dur"] <= ends[i]):
            event = {key: e[key] for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur")}
            texts.append(json.dumps(event, separators=(",", ":")))
        else:
            texts.append(without(text, e))
    return texts


def merged(spans: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Starts and ends of sorted intervals, with those that overlap made one."""
    starts: list[float] = []
    ends: list[float] = []
    for start, end in spans:
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends


def without(text: str, event: dict) -> str:
    """An event's text without some args, in one line."""
    kept = {key: value for key, value in event.get("args", {}).items() if key not in ARGS}
    if "args" in event:
        text = f"{text[: text.index(_ARGS)]}{_ARGS}{json.dumps(kept, separators=(',', ':'))}}}"
    return re.sub(r"\n\s*", "", text)


def neutral(word: str, folder: str = "") -> str:
    """A path without the machine it is on."""
    return f"{HOME}/{folder}/{Path(word).name}".replace("//", "/") if word.startswith("/") else word


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    main()
