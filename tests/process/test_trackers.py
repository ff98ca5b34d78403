"""What a Recorder and the Trainer's callback log to trackers, read back from their local stores."""

from __future__ import annotations

import json
import math
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.paths import ROOT
from helpers.started import finished
from helpers.trainings import MODEL, variables
from helpers.warm_torch import warm_python

need("torch")

LOOP = """
    import gpuprof

    def train(steps, out="run", **options):
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with gpuprof.Recorder(out, settle=2, baseline=4, steps=2, modules=0, **options) as recorder:
            for batch in batches(steps):
                loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
                recorder.step()
"""
TIMES = {"gpuprof/mean_step_ms", "gpuprof/usual_step_ms", "gpuprof/tokens_per_s"}
"""What is known of a training on a CPU, whose GPU is none; its samples only where a DataLoader hands them out."""


def train(folder: Path, code: str, **env: str) -> str:
    """Runs a script of MODEL, LOOP and this code; its stderr."""
    script = folder / "train.py"
    script.write_text(textwrap.dedent(MODEL) + textwrap.dedent(LOOP) + textwrap.dedent(code))
    done = finished(
        [warm_python(), script], cwd=folder, env=variables(PYTHONPATH=str(ROOT), **env), text=True, timeout=240
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


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder and stderr of one program that trains three times: with its own trackers left out, as rank 1 of two, and
    with all trackers that are installed."""
    if not find_spec("tensorboard"):
        pytest.skip("tensorboard is not installed")
    folder = tmp_path_factory.mktemp("logged")
    code = """
        import contextlib
        import json
        from torch.utils.tensorboard import SummaryWriter

        def with_board(name, **options):
            writer = SummaryWriter(name)
            train(30, out=f"run-{name}", **options)
            writer.add_scalar("loss", 1.0, 30)
            writer.close()
            print("end of", name, file=sys.stderr)

        with_board("left-out", trackers=False)
        ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
        os.environ.update(ranks)
        with_board("rank1")
        for name in ranks:
            del os.environ[name]
        with contextlib.ExitStack() as active:
            if MLFLOW:
                import mlflow
                active.enter_context(mlflow.start_run())
            if WANDB:
                import wandb
                run = wandb.init(project="p", mode="offline", settings=wandb.Settings(silent=True))
            with_board("board")
        if WANDB:
            summary = {key: value for key, value in dict(run.summary).items() if key.startswith("gpuprof")}
            open("summary.json", "w").write(json.dumps(summary))
            run.finish()
    """
    code = f"MLFLOW, WANDB = {bool(find_spec('mlflow'))}, {bool(find_spec('wandb'))}\n" + textwrap.dedent(code)
    stderr = train(
        folder, code, MLFLOW_TRACKING_URI=(folder / "mlruns").as_uri(), MLFLOW_ALLOW_FILE_STORE="true",
        WANDB_DIR=str(folder), WANDB_CONSOLE="off", HOME=str(folder),
    )  # fmt: skip
    return folder, stderr


def test_trackers_can_be_left_out_and_other_ranks_log_nothing(logged: tuple[Path, str]):
    folder, stderr = logged
    assert "gpuprof: logged" not in stderr.partition("end of rank1")[0]
    for name in ("left-out", "rank1"):
        assert scalars_in(folder / name) == {"loss": (30, 1.0)}


def test_tensorboard_gets_the_numbers_of_a_recorder(logged: tuple[Path, str]):
    folder, stderr = logged
    assert stderr.count("gpuprof: logged ") == 1 and "tensorboard" in stderr.partition("gpuprof: logged ")[2]
    values = scalars_in(folder / "board")
    assert values.pop("loss") == (30, 1.0), "the program's own scalars are where they were"
    assert {step for step, _ in values.values()} == {30}
    is_sound({name: value for name, (_, value) in values.items()})


@pytest.mark.skipif(not find_spec("mlflow"), reason="needs mlflow")
def test_mlflow_gets_the_numbers_the_report_and_the_verdict(logged: tuple[Path, str]):
    folder, stderr = logged
    assert "mlflow" in stderr.partition("gpuprof: logged ")[2]
    (run,) = (path for path in (folder / "mlruns").glob("*/*/metrics/gpuprof"))
    values = {f"gpuprof/{path.name}": float(path.read_text().split()[1]) for path in run.iterdir()}
    is_sound(values)
    step = scalars_in(folder / "board")["gpuprof/mean_step_ms"][1]
    assert values["gpuprof/mean_step_ms"] == pytest.approx(step, rel=1e-5)
    assert (run.parents[1] / "artifacts" / "gpuprof-report" / "report.html").stat().st_size > 100_000
    assert (run.parents[1] / "tags" / "gpuprof.verdict").read_text().strip()


@pytest.mark.skipif(not find_spec("wandb"), reason="needs wandb")
def test_wandb_gets_the_numbers_offline(logged: tuple[Path, str]):
    folder, stderr = logged
    assert "wandb" in stderr.partition("gpuprof: logged ")[2]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary.pop("gpuprof/verdict")
    is_sound(summary)
    (stored,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    text = stored.read_bytes()
    assert b"gpuprof/mean_step_ms" in text and b"gpuprof-report-" in text


@pytest.mark.slow
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
    assert values["gpuprof/samples_per_s"][1] > 0


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
