"""Roles on one timeline, from marks whose times are known."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT
from helpers.phase_marks import MS, UNIX, Marks
from helpers.phase_marks import write_marks as run
from helpers.role_runs import VALIDATOR, diagnosed

from gpuprof.cli import main
from gpuprof.diagnosis.roles.model import Roles
from gpuprof.diagnosis.roles.sources import diagnose_roles
from gpuprof.errors import GpuprofError
from gpuprof.tracefile.recording import resolve
from gpuprof.tracefile.run_folder.phase_logs import read_phase_logs


def waits(found: Roles) -> dict[tuple[str, str, str], tuple[float, int]]:
    return {(one.role, one.waits_for, one.phase): (one.ns / MS, one.count) for one in found.waits}


def test_a_trainer_that_waits_for_a_generator(tmp_path: Path):
    """Generation takes 100 ms, training 40: the trainer waits for 60 of every 100."""
    generator = [("generation", 100.0 * i, 100.0 * i + 99) for i in range(11)]
    trainer = [("training", 100.0 * i, 100.0 * i + 40) for i in range(1, 12)]
    paths = run(tmp_path / "g", generator, 1), run(tmp_path / "t", trainer, 2)
    assert resolve(paths).kind == "roles"
    found = diagnosed(*paths)
    one, other = sorted(found.roles, key=lambda role: role.role)
    assert (one.role, other.role) == ("generator", "trainer")
    assert found.window_ns == 999 * MS  # from the first training to the last generation's end
    assert other.wait_ns == (999 - 10 * 40) * MS
    assert other.bubble_ns == other.wait_ns - 9 * MS  # the trainer does not wait for it while the generator hands over
    assert one.wait_ns == 9 * MS
    assert found.iterations == 10
    assert waits(found)["trainer", "generator", "generation"] == (599.0, 10)
    assert found.one_clock and "the generator's generation limits the job" in found.limit


def test_a_generator_that_waits_for_room_in_the_queue(tmp_path: Path):
    """Training takes 100 ms, generation 30: the generator waits until a batch is taken, when a training has ended."""
    trainer = [("training", 100.0 * i, 100.0 * i + 99.5) for i in range(1, 12)]
    generator = [("generation", 100.0 * i + 2, 100.0 * i + 32) for i in range(1, 12)]
    found = diagnosed(run(tmp_path, trainer, 1), run(tmp_path / "g", generator, 2))
    assert waits(found)["generator", "trainer", "training"] == (700.0, 10)
    assert "the trainer's training limits the job" in found.limit


def test_turns_are_no_overlap(tmp_path: Path):
    generator = [("generation", 100.0 * i, 100.0 * i + 50) for i in range(12)]
    trainer = [("training", 100.0 * i + 50, 100.0 * i + 100) for i in range(12)]
    found = diagnosed(run(tmp_path, trainer, 1), run(tmp_path / "g", generator, 2))
    assert all(0.45 < one.bubble_share < 0.55 for one in found.roles)
    assert "work in turns" in found.limit


def test_weight_sync_is_met_by_both_sides(tmp_path: Path):
    """The trainer comes to the weight sync 30 ms before the generator ends: it waits for it."""
    trainer = [mark for i in range(1, 8) for mark in (("training", 100.0 * i, 100.0 * i + 60),
                                                       ("weight sync", 100.0 * i + 60, 100.0 * i + 100))]  # fmt: skip
    generator = [mark for i in range(1, 8) for mark in (("generation", 100.0 * i, 100.0 * i + 90),
                                                         ("weight sync", 100.0 * i + 90, 100.0 * i + 100))]  # fmt: skip
    found = diagnosed(run(tmp_path, trainer, 1), run(tmp_path / "g", generator, 2))
    assert waits(found) == {("trainer", "generator", "generation"): (7 * 30.0, 7)}
    alone = diagnosed(
        run(tmp_path / "t2", trainer, 1),
        run(tmp_path / "g2", [mark for mark in generator if mark[0] != "weight sync"], 2),
    )
    assert all(phase.ns for role in alone.roles for phase in role.phases if phase.phase == "weight sync")


def test_work_without_marks_is_no_waiting(tmp_path: Path):
    trainer = [("training", 100.0 * i, 100.0 * i + 40) for i in range(1, 8)]
    generator = [("generation", 100.0 * i, 100.0 * i + 99) for i in range(8)]
    found = diagnosed(run(tmp_path, trainer, 1, busy=True), run(tmp_path / "g", generator, 2))
    mine = next(one for one in found.roles if one.role == "trainer")
    assert mine.wait_ns == 0
    assert {one.phase for one in mine.phases} == {"training", "other"}


def test_idle_is_waiting_and_the_innermost_mark_has_the_time(tmp_path: Path):
    trainer = [
        mark
        for i in range(1, 8)
        for mark in (("idle", 100.0 * i + 10, 100.0 * i + 40), ("backward", 100.0 * i + 50, 100.0 * i + 70),
                     ("forward", 100.0 * i, 100.0 * i + 100))
    ]  # fmt: skip
    generator = [("generation", 100.0 * i, 100.0 * i + 100) for i in range(9)]
    found = diagnosed(run(tmp_path, trainer, 1, busy=True), run(tmp_path / "g", generator, 2))
    mine = next(one for one in found.roles if one.role == "trainer")
    assert mine.wait_ns == 7 * 30 * MS
    assert [(one.phase, one.ns) for one in mine.phases] == [("training", 7 * 70 * MS)]


def test_processes_of_one_run_share_a_clock_whatever_the_day_says(tmp_path: Path):
    """Two processes of a host read different times of day, but share the monotonic clock since boot."""
    generator = [("generation", 100.0 * i, 100.0 * i + 99) for i in range(11)]
    trainer = [("training", 100.0 * i, 100.0 * i + 40) for i in range(1, 12)]
    folder = run(tmp_path, generator, 1)
    run(tmp_path, trainer, 2, late_ms=37.0)
    assert resolve(folder).has_roles
    assert waits(diagnosed(folder))["trainer", "generator", "generation"] == (599.0, 10)
    run(tmp_path, trainer, 2, late_ms=37.0, boot="another host")
    apart = diagnosed(folder)
    assert not apart.one_clock
    assert [one.id for one in apart.issues] == ["several_clocks"]


def test_several_generators_are_numbered(tmp_path: Path):
    for pid in (1, 2):
        run(tmp_path, [("generation", 100.0 * i, 100.0 * i + 99) for i in range(11)], pid)
    run(tmp_path, [("training", 100.0 * i, 100.0 * i + 40) for i in range(1, 12)], 3)
    found = diagnosed(str(tmp_path))
    assert [one.role for one in found.roles] == ["generator 1", "generator 2", "trainer"]


def test_what_another_thread_does_is_no_waiting(tmp_path: Path):
    folder = run(tmp_path, [("training", 100.0 * i, 100.0 * i + 40) for i in range(1, 12)], 1)
    path = tmp_path / "phases.1.jsonl"
    span = {"phase": "reward", "thread": 9, "begin_ns": 150 * MS, "ns": 20 * MS, "cpu_begin_ns": 0, "cpu_ns": 0}
    path.write_text(path.read_text() + json.dumps(span) + "\n")
    found = diagnosed(folder, run(tmp_path / "g", [("generation", 100.0 * i, 100.0 * i + 99) for i in range(13)], 2))
    mine = next(one for one in found.roles if one.role == "trainer")
    assert {one.phase: one.ns for one in mine.phases} == {"training": 440 * MS, "reward": 20 * MS}


def traced(path: Path, ranges: Marks, ops: Marks, base_ms: float) -> str:
    """A trace of torch.profiler with ranges and ops, in ms since its base."""
    events = [
        {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": 1000 * start, "dur": 1000 * (end - start),
         "args": {"External id": i}}
        for kind, given in (("user_annotation", ranges), ("cpu_op", ops)) for i, (name, start, end) in enumerate(given)
    ]  # fmt: skip
    document = {"schemaVersion": 1, "baseTimeNanoseconds": UNIX + round(base_ms * MS), "traceEvents": events}
    path.write_text(json.dumps(document))
    return str(path)


def test_traces_of_verls_workers(tmp_path: Path):
    """Each trace uses the time of day; the trainer's recording began 50 ms later."""
    generator = traced(
        tmp_path / "rollout.json", [("generate_sequences", 100.0 * i, 100.0 * i + 98) for i in range(11)], [], 0.0
    )
    ranges = [("update_actor", 100.0 * i - 50, 100.0 * i - 20) for i in range(1, 12)]
    ops = [("aten::mul", 100.0 * i - 20, 100.0 * i + 10) for i in range(1, 12)]  # work between the marks
    trainer = traced(tmp_path / "actor.json", ranges, ops, 50.0)
    assert resolve((generator, trainer)).kind == "ranks"  # for traces it must be stated, as they may be ranks
    found = diagnosed(generator, trainer)
    one, other = sorted(found.roles, key=lambda role: role.role)
    assert (one.role, other.role) == ("generator", "trainer")
    assert found.window_ns == 998 * MS
    assert {phase.phase: phase.ns / MS for phase in other.phases} == {"training": 300.0, "other": 310.0}
    assert other.wait_ns == (998 - 300 - 310) * MS
    assert found.one_clock


def test_queue_and_staleness_come_from_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    generator = run(tmp_path / "g", [("generation", 100.0 * i, 100.0 * i + 99) for i in range(11)], 1)
    trainer = run(tmp_path / "t", [("training", 100.0 * i, 100.0 * i + 40) for i in range(1, 12)], 2)
    log = tmp_path / "train.log"
    keys = "timing_s/step:100.0 - timing_s/gen:40.0 - fully_async/monitor/queue/mq_queue_size:{}"
    stale = "training/off_policy/trajectory_staleness/mean:1.5"
    log.write_text("".join(f"step:{n} - {keys.format(n)} - {stale}\n" for n in range(1, 6)))
    found = diagnosed(generator, str(log), trainer)
    assert [(one.kind, one.mean) for one in found.queue] == [("queue", 3.5), ("staleness", 1.5)]
    assert main(["diagnose", "--roles", generator, trainer, str(log)]) == 0
    assert "3.5 wait to be trained on; their policy is 1.5 updates old" in " ".join(capsys.readouterr().out.split())


FORKED = """
import os, sys
from pathlib import Path
from gpuprof.record.phases.phase_log import PhaseLogWriter
log = PhaseLogWriter(Path(sys.argv[1]))
log.end(log.begin("training"))
with log._lock:  # as if another thread were writing
    child = os.fork()
    if not child:
        log.end(log.begin("generation"))
        os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""


def test_a_forked_child_has_a_file_of_its_own(tmp_path: Path):
    command = [sys.executable, "-c", FORKED, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == 0
    marked = [[mark.phase for mark in one.marks] for one in read_phase_logs(tmp_path)]
    assert sorted(marked) == [["generation"], ["training"]]


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    early = run(tmp_path / "a", [("training", 0.0, 10.0), ("training", 20.0, 30.0)], 1)
    late = run(tmp_path / "b", [("generation", 900.0, 910.0)], 2)
    for paths, words in (
        ((early,), "one process is no timeline"),
        ((early, late), "do not overlap in time"),
        ((early, str(tmp_path)), "marks no phases"),
        ((str(tmp_path / "none"),), "no such file"),
    ):
        with pytest.raises(GpuprofError, match=words):
            diagnose_roles(resolve(paths))
        assert main(["diagnose", "--roles", *paths]) == 2
        said = capsys.readouterr()
        assert words in " ".join(said.err.split()) and "Traceback" not in said.err and not said.out


def test_damage_is_passed_over(tmp_path: Path):
    chance = random.Random(7)
    generator = run(tmp_path / "g", [("generation", 100.0 * i, 100.0 * i + 99) for i in range(11)], 1)
    trainer = run(tmp_path / "t", [("training", 100.0 * i, 100.0 * i + 40) for i in range(1, 12)], 2)
    path = tmp_path / "t" / "phases.2.jsonl"
    whole = path.read_text()
    for _ in range(60):
        text = list(whole)
        for _ in range(chance.randint(1, 30)):
            text[chance.randrange(len(text))] = chance.choice('x0{}",\n')
        path.write_text("".join(text))
        try:
            diagnosed(generator, trainer)
        except GpuprofError as error:
            assert "\n" not in str(error)


def test_the_terminal_draws_a_lane_for_each_role(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    generator = run(tmp_path / "g", [("generation", 100.0 * i, 100.0 * i + 99) for i in range(11)], 1)
    trainer = run(tmp_path / "t", [("training", 100.0 * i, 100.0 * i + 40) for i in range(1, 12)], 2)
    assert main(["diagnose", generator, trainer]) == 0
    said = capsys.readouterr().out
    lane = next(line for line in said.splitlines() if line.startswith("  trainer"))
    assert 0.3 < lane.count("▩") / (lane.count("▩") + lane.count("·")) < 0.5
    assert "the trainer waits for the generator's generation 60 %" in " ".join(said.split())
    assert main(["diagnose", "--json", generator, trainer]) == 0
    VALIDATOR.validate(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("seed", range(6))
def test_the_queue_is_counted_from_the_marks(tmp_path: Path, seed: int):
    """Compared with a queue that is followed as it fills and empties, and with the versions that its batches were made
    with."""
    chance = random.Random(seed)
    room, count = chance.choice((1, 2, 4)), 40
    generated: list[tuple[float, float, int]] = []  # begin, end, version of its weights
    taken: list[float] = []
    trained: list[float] = []
    clock = 0.0
    for i in range(count):  # it begins once there is room for what it will generate
        begin = max(clock + 0.05, taken[i - room]) if i >= room else clock + 0.05
        version = sum(end <= begin for end in trained)
        clock = begin + (chance.uniform(20, 40) if i % 10 else chance.uniform(300, 400))
        generated.append((begin, clock, version))
        taken.append(max(clock, trained[-1] + 4 if trained else 0.0))
        trained.append(taken[-1] + chance.uniform(30, 60))
    syncs = [(end, end + 3) for end in trained]
    generator = [("generation", begin, end) for begin, end, _ in generated]
    trainer = [("training", begin, end) for begin, end in zip(taken, trained, strict=True)]
    trainer = sorted([*trainer, *(("weight sync", *one) for one in syncs)], key=lambda one: one[1])
    found = diagnosed(run(tmp_path / "g", generator, 1), run(tmp_path / "t", trainer, 2))
    low, high = taken[0], generated[-1][1]
    steps = sorted({low, high, *(one[1] for one in generated), *taken})
    steps = [at for at in steps if low <= at <= high]
    depth = [sum(one[1] <= at for one in generated) - sum(one <= at for one in taken) for at in steps]
    mean = sum(d * (b - a) for d, a, b in zip(depth, steps, steps[1:], strict=False)) / (high - low)
    by_kind = {one.kind: one for one in found.queue}
    assert by_kind["queue"].mean == pytest.approx(mean, abs=1e-6)
    assert by_kind["queue"].most == max(depth[:-1])
    begun = [start for start in taken if start <= high]
    ages = [
        sum(end + 3 <= start for end in trained) - sum(end + 3 <= one[0] for end in trained)
        for start, one in zip(begun, generated, strict=False) if one[0] >= low
    ]  # fmt: skip
    assert by_kind["staleness"].mean == pytest.approx(sum(ages) / len(ages), abs=1.5 / len(ages))


def test_a_queue_that_was_never_empty_is_not_counted(tmp_path: Path):
    """The number of batches at the beginning is unknown."""
    generator = [("generation", 100.0 * i, 100.0 * i + 20) for i in range(11)]
    trainer = [("training", 100.0 * i + 1, 100.0 * i + 100) for i in range(11)]
    assert diagnosed(run(tmp_path / "g", generator, 1), run(tmp_path / "t", trainer, 2)).queue == ()
