"""What a Recorder and the Trainer's callback log to trackers, read back from their local stores."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.paths import ROOT
from helpers.started import finished
from helpers.trainings import MODEL, variables

need("torch")

LOOP = """
    import gpuprof

    def train(steps, **options):
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with gpuprof.Recorder("run", settle=2, baseline=4, steps=2, modules=0, **options) as recorder:
            for batch in batches(steps):
                loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                recorder.step()
"""
TIMES = {"gpuprof/mean_step_ms", "gpuprof/tokens_per_s", "gpuprof/samples_per_s"}
"""What is known of a training on a CPU, whose GPU is none."""


def train(folder: Path, code: str, **env: str) -> str:
    """Runs a script of MODEL, LOOP and this code; its stderr."""
    script = folder / "train.py"
    script.write_text(textwrap.dedent(MODEL) + textwrap.dedent(LOOP) + textwrap.dedent(code))
    done = finished(
        [sys.executable, script], cwd=folder, env=variables(PYTHONPATH=str(ROOT), **env), text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def is_sound(values: dict[str, float]) -> None:
    assert set(values) >= TIMES, values
    assert all(math.isfinite(value) and value > 0 for name, value in values.items() if name in TIMES)


def scalars_in(folder: Path) -> dict[str, tuple[int, float]]:
    """Name → last step and value, of all event files of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: (found.Scalars(tag)[-1].step, found.Scalars(tag)[-1].value) for tag in found.Tags()["scalars"]}


@pytest.mark.skipif(not (find_spec("tensorboard") and find_spec("mlflow")), reason="needs tensorboard and mlflow")
def test_tensorboard_and_mlflow_get_the_numbers_of_a_recorder(tmp_path: Path):
    stderr = train(
        tmp_path,
        """
        import mlflow
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter("board")
        with mlflow.start_run():
            train(30)
            writer.add_scalar("loss", 1.0, 30)
        writer.close()
        """,
        MLFLOW_TRACKING_URI=(tmp_path / "mlruns").as_uri(), MLFLOW_ALLOW_FILE_STORE="true",
    )  # fmt: skip
    assert "gpuprof: logged " in stderr and "mlflow, tensorboard" in stderr
    values = scalars_in(tmp_path / "board")
    assert values.pop("loss") == (30, 1.0), "the program's own scalars are where they were"
    assert {step for step, _ in values.values()} == {30}
    is_sound({name: value for name, (_, value) in values.items()})

    (run,) = (path for path in (tmp_path / "mlruns").glob("*/*/metrics/gpuprof"))
    logged = {f"gpuprof/{path.name}": float(path.read_text().split()[1]) for path in run.iterdir()}
    is_sound(logged)
    assert logged["gpuprof/mean_step_ms"] == pytest.approx(values["gpuprof/mean_step_ms"][1], rel=1e-5)
    assert (run.parents[1] / "artifacts" / "gpuprof-report" / "report.html").stat().st_size > 100_000
    assert (run.parents[1] / "tags" / "gpuprof.verdict").read_text().strip()


@pytest.mark.skipif(not find_spec("wandb"), reason="needs wandb")
def test_wandb_gets_the_numbers_offline(tmp_path: Path):
    stderr = train(
        tmp_path,
        """
        import wandb
        run = wandb.init(project="p", mode="offline", settings=wandb.Settings(silent=True))
        train(30)
        import json
        summary = {key: value for key, value in dict(run.summary).items() if key.startswith("gpuprof")}
        open("summary.json", "w").write(json.dumps(summary))
        run.finish()
        """,
        WANDB_DIR=str(tmp_path), WANDB_CONSOLE="off", HOME=str(tmp_path),
    )  # fmt: skip
    assert "to wandb" in stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary.pop("gpuprof/verdict")
    is_sound(summary)
    (stored,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    text = stored.read_bytes()
    assert b"gpuprof/mean_step_ms" in text and b"gpuprof-report-" in text


@pytest.mark.skipif(not (find_spec("tensorboard") and find_spec("transformers")), reason="needs both")
def test_a_trainer_whose_callback_closes_its_board_first(tmp_path: Path):
    train(
        tmp_path,
        """
        import transformers
        class Causal(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = Model()
            def forward(self, input_ids, labels=None):
                return {"loss": self.model(input_ids).float().square().mean()}
        data = [{"input_ids": torch.randint(0, 50, (8,))} for _ in range(120)]
        arguments = transformers.TrainingArguments(
            "out", per_device_train_batch_size=4, max_steps=30, report_to=["tensorboard"], use_cpu=True,
            save_strategy="no", disable_tqdm=True, logging_steps=10,
        )
        trainer = transformers.Trainer(
            Causal(), arguments, train_dataset=data,
            callbacks=[gpuprof.TrainerCallback(out="run", settle=2, baseline=4, steps=2)],
        )
        trainer.train()
        """,
        TENSORBOARD_LOGGING_DIR=str(tmp_path / "board"),
    )
    (folder,) = {path.parent for path in tmp_path.rglob("events.out.tfevents.*")}
    values = scalars_in(folder)
    assert "train/loss" in values or "train/train_loss" in values
    is_sound({name: value for name, (_, value) in values.items() if name.startswith("gpuprof/")})


def test_without_a_tracker_nothing_is_diagnosed_and_none_is_imported(tmp_path: Path):
    stderr = train(
        tmp_path,
        """
        train(30)
        print(sorted({"wandb", "mlflow", "tensorboard"} & set(sys.modules)), file=sys.stderr)
        """,
    )
    assert "logged" not in stderr and stderr.rstrip().endswith("[]")
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.skipif(not find_spec("tensorboard"), reason="needs tensorboard")
def test_trackers_can_be_left_out_and_other_ranks_log_nothing(tmp_path: Path):
    code = """
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter("board")
        train(30, trackers={trackers})
        writer.close()
    """
    train(tmp_path, code.format(trackers=False))
    assert scalars_in(tmp_path / "board") == {}
    other = tmp_path / "other"
    other.mkdir()
    assert "logged" not in train(other, code.format(trackers=True), RANK="1", WORLD_SIZE="2", LOCAL_RANK="1")
    assert scalars_in(other / "board") == {}
