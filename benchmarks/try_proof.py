"""Predicted, tried and edited by hand: whether `gpuprof try` measures what the same change in the script gains.

    python -m benchmarks.try_proof                      # six programs, two fixes each, two rounds; needs a GPU
    python -m benchmarks.try_proof --only sft dpo       # some of them
    python -m benchmarks.try_proof --keep proof.json    # adds to what earlier calls measured, and prints all of it
    python -m benchmarks.try_proof --show benchmarks/try_proof_h200.json    # measures nothing, prints what was measured
    python -m benchmarks.try_proof --tiny --at-once 1   # the same on a CPU, small

Each program is recorded, then its variants take turns as in `gpuprof try`: as it is, fix 1 from outside, fix 1 by
hand, fix 2 from outside, fix 2 by hand, as it is, … Three programs are TRL's own scripts (`trl.scripts`), edited
through their flags; three are written here, edited in their text. Data, model and tokenizer are made on the spot. All
six in one call take longer than ten minutes on one GPU: split them with --only, and let --keep collect the rows.
Exits with 1 if a fix by hand and the same from outside differ by more than LIMIT and than their intervals allow.

Steps on a CPU depend on what else runs there: two threads that wait for each other take many times as long on full
CPUs. So --tiny uses one thread, rows say how many of their processes shared full CPUs with other programs, and the last
column compares the CPU time of a step, which other programs hardly change.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from gpuprof import runfile
from gpuprof.record.launcher.command import Target
from gpuprof.record.trials.trial_meter import ARRIVED
from gpuprof.trial import judge
from gpuprof.trial.fixes import FixToTry, advised, parse
from gpuprof.trial.starter import Outcome, Starter
from gpuprof.trial.trial import TimedProcess, TriedFix
from gpuprof.trial.trial_subject import predict_workers, run_of_command, subject_of

LIMIT = 0.10
"""Difference between two processes of one program that occurs now and then on H200 hosts; the median is 3 %."""
LIMIT_S = 200.0
"""Seconds after which a process is given up, its wait at the gate included."""
STRETCH_S = 4.0
"""Seconds of a timed stretch at most."""
AT_ONCE = 11
"""Processes that are started together: all of a program with two fixes in two rounds."""

SIZES = {False: (1024, 8, 2048, 512), True: (64, 2, 64, 32)}
"""Width, layers, tokens of a sample at most, and the own programs' batch, on a GPU and with --tiny."""

_HEAD = """
import sys, time
import torch
torch.manual_seed(0)
WIDTH, LAYERS, LENGTH, BATCH = {sizes}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""
_INPUT = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 200_000

    def __getitem__(self, i):
        x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(i))
        time.sleep(0.0002)  # a small read
        return x

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x

if __name__ == "__main__":
    model = Net().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = torch.utils.data.DataLoader(Data(), batch_size=min(BATCH, 64), shuffle=True)
    for x in loader:
        model(x.to(DEVICE)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
_FP32 = """
model = torch.nn.TransformerEncoder(
    torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True), LAYERS
).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
data = torch.utils.data.TensorDataset(torch.randn(256, 256 if DEVICE == "cuda" else 16, WIDTH))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
while True:
    for (x,) in loader:
        model(x.to(DEVICE)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
_EAGER = """
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.bfloat16, attn_implementation="eager").to(DEVICE)
model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
loader = torch.utils.data.DataLoader(torch.randint(1, 500, (2000, LENGTH // 2)), batch_size=4, shuffle=True)
while True:
    for ids in loader:
        ids = ids.to(DEVICE)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@dataclass
class Program:
    """A program, and for each of two fixes how it is made by hand."""

    name: str
    of: str
    """The project that it is from."""
    text: str = ""
    module: str = ""
    flags: tuple[str, ...] = ()
    by_hand: dict[str, Any] = field(default_factory=dict)
    """Fix → (text, its replacement), or the further flags of a module."""

    def command(self, fix: str, folder: Path, tiny: bool) -> tuple[str, ...]:
        """The command with a fix made by hand; as it is for an empty name."""
        if self.module:
            edit = self.by_hand[fix] if fix else ()
            gpu = ("--use_cpu", "True", "--bf16", "False") if tiny else ()
            return (sys.executable, "-m", self.module, *self.flags, *gpu, *edit)
        text = _HEAD.format(sizes=SIZES[tiny]) + self.text
        if fix:
            before, after = self.by_hand[fix]
            assert before in text, f"{self.name}: {before} is not in its text"
            text = text.replace(before, after)
        script = folder / f"{self.name}{'_' + fix.partition('=')[0] if fix else ''}.py"
        script.write_text(text, encoding="utf-8")
        return (sys.executable, script.name)


_TRL = (
    "--model_name_or_path", "model", "--output_dir", "out", "--max_steps", "300", "--dtype", "bfloat16",
    "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2", "--report_to", "none",
    "--save_strategy", "no", "--learning_rate", "1e-5",
)  # fmt: skip
_NO_CHECKPOINTS = ("--gradient_checkpointing", "False")
_LARGER = ("--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "1")
_WORKERS = ("--dataloader_num_workers", "4", "--dataloader_persistent_workers", "True")

PROGRAMS = (
    Program("slow_input", "its own", _INPUT, by_hand={
        "input_workers=8": ("shuffle=True)", "shuffle=True, num_workers=8, persistent_workers=True)"),
        "optimizer=fused": ("lr=1e-4)", "lr=1e-4, fused=True)"),
    }),
    Program("fp32_loop", "its own", _FP32, by_hand={
        "tf32": ("torch.manual_seed(0)", 'torch.manual_seed(0)\ntorch.set_float32_matmul_precision("high")'),
        "optimizer=fused": ("foreach=False", "fused=True"),
    }),
    Program("eager_checkpointed", "its own", _EAGER, by_hand={
        "eager_attention=sdpa": ('attn_implementation="eager"', 'attn_implementation="sdpa"'),
        "recompute": ("model.gradient_checkpointing_enable()\n", ""),
    }),
    Program("sft", "TRL", module="trl.scripts.sft", flags=("--dataset_name", "texts", *_TRL), by_hand={
        "recompute": _NO_CHECKPOINTS, "larger_batch=2": _LARGER,
    }),
    Program("dpo", "TRL", module="trl.scripts.dpo", flags=("--dataset_name", "pairs", *_TRL), by_hand={
        "recompute": _NO_CHECKPOINTS, "larger_batch=2": _LARGER,
    }),
    Program("reward", "TRL", module="trl.scripts.reward", flags=("--dataset_name", "pairs", *_TRL), by_hand={
        "recompute": _NO_CHECKPOINTS, "input_workers=4": _WORKERS,
    }),
)  # fmt: skip


def make_inputs(folder: Path, tiny: bool) -> None:
    """A model with a tokenizer, texts and pairs of answers, as the programs find them in their working directory."""
    import random

    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    width, layers, length, _ = SIZES[tiny]
    words = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *(f"w{n}" for n in range(508))]
    tokens = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="[PAD]", unk_token="[UNK]", bos_token="[BOS]", eos_token="[EOS]"
    ).save_pretrained(folder / "model")
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
            num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=2 * length, pad_token_id=0,
            bos_token_id=2, eos_token_id=3,
        )
    )  # fmt: skip
    model.to(torch.bfloat16).save_pretrained(folder / "model")
    draw = random.Random(0)

    def text(least: int, most: int) -> str:
        return " ".join(f"w{draw.randrange(508)}" for _ in range(draw.randint(least, most)))

    rows = 3000 if not tiny else 800
    texts = [{"text": text(length // 8, length // 2)} for _ in range(rows)]
    pairs = [
        {"prompt": text(8, 16), "chosen": text(length // 16, length // 4), "rejected": text(length // 16, length // 4)}
        for _ in range(rows)
    ]
    for name, found in (("texts", texts), ("pairs", pairs)):
        (folder / name).mkdir()
        (folder / name / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")


def record(command: tuple[str, ...]) -> None:
    """Records the command, which predictions start from."""
    ours = [sys.executable, "-m", "gpuprof", "trace", "--stop", "--no-report", *command]
    root = str(Path(__file__).parents[1])
    path = os.environ.get("PYTHONPATH", "")
    environment = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{path}" if path else root}
    subprocess.run(ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LIMIT_S, env=environment)


def predicted(command: tuple[str, ...], fixes: list[TriedFix]) -> dict[str, list[float] | None]:
    """Fix → low, expected and high gain that the diagnosis predicts; None if it does not advise the fix."""
    folder = run_of_command(command)
    if folder is None:
        return {}
    subject = subject_of(folder)
    known = {one.fix.name: one for one in advised(subject.diagnosis)[0]}
    found: dict[str, list[float] | None] = {}
    for fix in fixes:
        one = predict_workers(subject, known.get(fix.name) or FixToTry(fix))
        gain = one.speedup
        found[str(fix)] = None if gain is None else [gain.low or 0.0, gain.expected, gain.high or 0.0]
    return found


def prove(program: Program, rounds: int, tiny: bool, at_once: int) -> Iterator[dict[str, Any]]:
    """A row for each fix of a program, in whose folder we are."""
    here = Path.cwd()
    fixes = [parse(fix)[0] for fix in program.by_hand]
    plain = program.command("", here, tiny)
    record(plain)
    predictions = predicted(plain, fixes)
    variants: list[tuple[str, TriedFix | None, tuple[str, ...]]] = [("", None, plain)]
    for fix in fixes:
        variants.append((f"tried {fix}", fix, plain))
        variants.append((f"edited {fix}", None, program.command(str(fix), here, tiny)))
    processes: list[TimedProcess] = []
    cpu_ns: dict[str, list[float]] = {}
    why: dict[str, str] = {}
    turns = [*variants * rounds, variants[0]]
    for (name, fix, _), outcome in zip(turns, take_turns(turns, program.name, at_once), strict=True):
        p = outcome.process
        reason = p.error or (outcome.not_applied if fix else None)
        if reason:
            why[name] = reason
        processes.append(dataclasses.replace(p, name=name))
        cpu_ns.setdefault(name, []).extend(float(rank["cpu_ns"]) for rank in outcome.ranks if rank.get("cpu_ns"))
        print(
            f"  {time.strftime('%X')} {name or 'as it is'}: {(p.step_ns or 0) / 1e6:.2f} ms {reason or ''}", flush=True
        )
    for fix in fixes:
        tried, edited = (judge.speedup(f"{how} {fix}", processes) for how in ("tried", "edited"))
        cpu = [cpu_ns.get(f"{how} {fix}") for how in ("tried", "edited")]
        own = [p for p in processes if p.name in ("", f"tried {fix}", f"edited {fix}")]
        yield {
            "program": program.name, "of": program.of, "fix": str(fix), "predicted": predictions.get(str(fix)),
            "tried": _three(tried), "edited": _three(edited),
            "cpu_apart": mean(cpu[0]) / mean(cpu[1]) - 1 if cpu[0] and cpu[1] else None,
            "disturbed": sum(p.is_disturbed for p in own), "processes": len(own),
            "why": why.get(f"tried {fix}") or why.get(f"edited {fix}"),
        }  # fmt: skip


def take_turns(
    turns: Sequence[tuple[str, TriedFix | None, tuple[str, ...]]], stem: str, at_once: int
) -> Iterator[Outcome]:
    """What came of each process, in their order.

    A start takes longer than what is timed, so up to `at_once` are started together. Each waits after its first step;
    one at a time is let on, and timed while the others sleep. The first says how many steps settle and are timed.
    """
    lengths: dict[str, int | None] = {"settle": None, "steps": None}
    for first in range(0, len(turns), at_once):
        wave = turns[first : first + at_once]
        with ExitStack() as stack, ThreadPoolExecutor(len(wave)) as threads:
            starters = [
                stack.enter_context(Starter(Target(command, stem, sys.executable, True, ()), False))
                for _, _, command in wave
            ]
            gates = [starter.scratch / "gate.json" for starter in starters]
            running = [
                threads.submit(one.run, (fix,) if fix else (), None, None, STRETCH_S, LIMIT_S, None, gate)
                for one, gate, (_, fix, _) in zip(starters, gates, wave, strict=True)
            ]
            while not all(
                Path(f"{gate}{ARRIVED}").exists() or run.done() for gate, run in zip(gates, running, strict=True)
            ):
                time.sleep(0.05)
            for gate, run in zip(gates, running, strict=True):
                runfile.write_json(gate, lengths)
                outcome = run.result()
                if lengths["settle"] is None and outcome.ranks and outcome.process.steps:
                    lengths = {"settle": int(outcome.ranks[0]["settle"]), "steps": outcome.process.steps}
                yield outcome


def _three(found: Any) -> list[float | None] | None:
    return None if found is None else [found.low, found.expected, found.high]


def difference(row: dict[str, Any]) -> float | None:
    """Tried over edited, less one."""
    tried, edited = row.get("tried"), row.get("edited")
    return tried[1] / edited[1] - 1 if tried and edited and not row.get("why") else None


def cpu_difference(row: dict[str, Any]) -> float | None:
    """The same for the CPU time of a step."""
    return None if row.get("why") else row.get("cpu_apart")


def disagrees(row: dict[str, Any]) -> bool:
    """Whether tried and edited differ by more than LIMIT, and by more than their intervals and the machine explain."""
    apart = difference(row)
    if apart is None or abs(apart) <= LIMIT or row.get("disturbed"):
        return False
    (low, _, high), (least, _, most) = row["tried"], row["edited"]
    known = None not in (low, high, least, most)
    return not (known and low <= most and least <= high)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, one row per fix."""
    lines = [
        "| program | of | fix | predicted | tried | edited by hand | tried ÷ edited | disturbed | ÷ of CPU time |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        apart = difference(row)
        cells = [
            row["program"],
            row["of"],
            row["fix"],
            *(_shown(row.get(one)) for one in ("predicted", "tried", "edited")),
        ]
        cells.append(str(row["why"]) if row.get("why") else _percent(apart))
        cells += [f"{row.get('disturbed', 0)} of {row.get('processes', 0)}", _percent(cpu_difference(row))]
        lines.append(f"| {' | '.join(cells)} |")
    for of, found in (("", difference), (" of CPU time", cpu_difference)):
        known = sorted(abs(one) for row in rows if (one := found(row)) is not None)
        if known:
            lines.append(f"\ntried and edited differ by {100 * median(known):.1f} %{of} in the median of {len(known)}")
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:+.1f} %"


def _shown(found: list[float | None] | None) -> str:
    if not found or found[1] is None:
        return "–"
    if found[0] is None or found[2] is None:
        return f"{found[1]:.2f}×"
    return f"{found[0]:.2f}–{found[2]:.2f}×"


def main() -> int:
    names = [program.name for program in PROGRAMS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="PROGRAM", help=", ".join(names))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="processes that are started together")
    parser.add_argument("--tiny", action="store_true", help="small models, for a CPU")
    parser.add_argument("--keep", type=Path, help="a JSON file that is read, added to and written")
    parser.add_argument("--show", type=Path, help="a JSON file whose rows are printed; nothing is run")
    asked = parser.parse_args()
    if asked.show:
        print(table(json.loads(asked.show.read_text(encoding="utf-8"))))
        return 0
    if asked.tiny:
        os.environ["OMP_NUM_THREADS"] = "1"
    kept = asked.keep.absolute() if asked.keep else None
    rows: list[dict[str, Any]] = json.loads(kept.read_text(encoding="utf-8")) if kept and kept.exists() else []
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="try-proof-") as folder:
        make_inputs(Path(folder), asked.tiny)
        os.chdir(folder)
        try:
            for program in PROGRAMS:
                if program.name in asked.only:
                    print(f"{time.strftime('%X')} {program.name}", flush=True)
                    rows = [row for row in rows if row["program"] != program.name]
                    rows += prove(program, asked.rounds, asked.tiny, asked.at_once)
                    if kept:
                        kept.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        finally:
            os.chdir(before)
    print(table(rows))
    return int(any(disagrees(row) or row.get("why") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
