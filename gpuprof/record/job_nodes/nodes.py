"""One verdict for a job on several nodes: once its window has closed, each rank sends its digest to rank 0.

Every node runs `gpuprof trace` with a run folder of its own; no disk has to be shared. What reads the recording of a
node reduces each rank's trace to a digest (cli/shared/several_nodes.py); a thread in the rank's process signs it and
leaves it in the job's own store (or a shared folder), where the thread of rank 0 finds it. Rank 0 waits for a bounded
time.

It happens only where the launch sets GPUPROF_TOKEN, with which the messages are signed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...runfile import (
    EXCHANGE,
    NODES,
    RUN_VARIABLE,
    digest_file,
    log,
    no_digest_file,
    open_regular,
    rank_file,
    read_json,
    whole_file,
    write_json,
)
from ..base.redact import redact_text
from .mailbox import FolderMailbox, Mailbox, StoreMailbox
from .signed import (
    DIGEST,
    LARGEST_MESSAGE_BYTES,
    NOTE,
    PLAN,
    TOKEN,
    Message,
    NotVerified,
    key_of,
    new_call,
    number_of,
    seal,
    unseal,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Bytes, Seconds


SHARED = "GPUPROF_SHARED"
"""Environment variable with a folder that all nodes share, used in place of the job's store; or with a URL, which the
process that reads the recording uses, if its Python has the library for it (cli/shared/several_nodes.py)."""
WAIT = "GPUPROF_NODES_WAIT"
"""Environment variable with the seconds that rank 0 waits for the other ranks."""
WAIT_S: Assumed[Seconds] = 60.0
"""Seconds that rank 0 waits once its own digest is there."""
OWN_S: Assumed[Seconds] = 600.0
"""Seconds that a node's own digests may take: they are made at the lowest priority while the training runs."""
FAILED_S: Assumed[Seconds] = 10.0
"""Seconds that a process waits for its exchange when its program has failed: others may wait for its end."""
AGREE_S: Assumed[Seconds] = 5.0
"""Seconds that a rank waits for rank 0's step time, by which the window is planned. Collectives keep the ranks in the
same step, so it is late by no more than the difference between the ends of the ranks' steps."""
LAST_S: Assumed[Seconds] = 2.0
"""Seconds that rank 0 has after that to write down which ranks did not answer."""
LOOK_S: Assumed[Seconds] = 0.25
ANSWER_LOOK_S: Assumed[Seconds] = 0.01
CALL, PLANNED = "call", "plan"
_ENVELOPE_BYTES: Assumed[Bytes] = 64
"""Upper bound for the size of a signature and a kind."""
_JOB = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "TORCHELASTIC_RESTART_COUNT")
"""Variables that tell one job in a shared folder from another, the same on every node."""


def wait_s() -> float:
    """Seconds that rank 0 waits for the other nodes."""
    try:
        return min(max(float(os.environ[WAIT]), 0.0), OWN_S)
    except (KeyError, ValueError):
        return WAIT_S


def shared_url() -> str | None:
    """The URL in GPUPROF_SHARED; None if it is a folder or not set."""
    shared = os.environ.get(SHARED)
    return shared if shared and "://" in shared else None


def job_name() -> str:
    """A name that distinguishes this job from others in a shared place, from the launcher's variables."""
    return "-".join(os.environ.get(name, "") for name in _JOB)


def exchange_of(
    folder: Path, rank: int, world_size: int, ranks: list[int] | None, tell: Callable[[str], None]
) -> NodeExchange | None:
    """The exchange that this rank takes part in, not begun; None where the job has one process or no token, or where
    digests go to a URL.

    ranks: those that are recorded, None for all.
    """
    if world_size < 2 or not os.environ.get(RUN_VARIABLE):  # with a Recorder no other process makes digests
        return None
    token = os.environ.get(TOKEN)
    if not token:
        if rank == 0 and _on_several_nodes(world_size):
            tell(
                f"this job runs on several nodes, and each records its own ranks: with {TOKEN} set to the same secret"
                " on every node rank 0 prints one verdict of all"
            )
        return None
    wanted = set(range(world_size)) if ranks is None else set(ranks) & set(range(world_size))
    if 0 not in wanted:
        log(folder, "no digests are exchanged: rank 0 would collect them, and --ranks leaves it out")
        return None
    try:
        key = key_of(token)
    except ValueError as error:
        if rank == 0:
            tell(f"{error}; no digests are exchanged")
        return None
    (folder / NODES).mkdir(mode=0o700, exist_ok=True)
    if shared_url():
        return None
    return NodeExchange(folder, rank, wanted, key, tell)


def _on_several_nodes(world_size: int) -> bool:
    """Whether the launcher's variables say so."""
    local = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") or ""
    if local.isdecimal() and 0 < int(local) < world_size:
        return True
    nodes = os.environ.get("SLURM_JOB_NUM_NODES") or ""
    return nodes.isdecimal() and int(nodes) > 1


class NodeExchange(threading.Thread):
    """Sends one rank's digest, or collects those of all others. Never raises into the training and never delays it."""

    def __init__(self, folder: Path, rank: int, wanted: set[int], key: bytes, tell: Callable[[str], None]) -> None:
        super().__init__(name="gpuprof-nodes", daemon=True)
        self._folder, self._rank, self._wanted, self._key, self._tell = folder, rank, wanted, key, tell
        self._pid = os.getpid()
        self._mailbox: Mailbox | None = None
        self._number: bytes | None = None
        """The number of this recording's call."""
        self._hurry, self._over = threading.Event(), threading.Event()
        self.begun, self._begun_s = False, 0.0

    def agree(self, step_s: float) -> float:
        """Rank 0's `step_s`, seconds per step, so that all ranks plan the same window; this rank's own if it does not
        come. Called on the training's thread, which waits for AGREE_S at most."""
        try:
            self._mailbox = _mailbox()
            if self._rank == 0:
                number = self._call()
                self._mailbox.put(PLANNED, seal(self._key, number, Message(0, PLAN, repr(step_s).encode())))
                return step_s
            end = time.monotonic() + AGREE_S
            while not self._mailbox.has(PLANNED):
                if time.monotonic() > end:
                    log(self._folder, f"rank {self._rank} plans its window alone: rank 0 sent no plan")
                    return step_s
                time.sleep(ANSWER_LOOK_S)
            self._number = number_of(self._key, self._mailbox.take(CALL, 1 << 10))
            plan = unseal(self._key, self._number, 0, self._mailbox.take(PLANNED, 1 << 10))
            if plan.kind != PLAN:
                raise NotVerified("the plan of rank 0")
            return float(plan.body)
        except Exception as error:
            log(self._folder, f"rank {self._rank} plans its window alone: {_one_line(error)}")
            return step_s

    def begin(self, failed: str | None = None, mailbox: Mailbox | None = None) -> None:
        """The window has closed, or `failed` says why there is none. Called once, on the training's thread, or on
        another with a mailbox."""
        if self.begun or os.getpid() != self._pid:
            return
        self.begun, self._begun_s = True, time.monotonic()
        try:
            if failed is not None:
                self._write_note(self._rank, failed)
            self._mailbox = mailbox or self._mailbox or _mailbox()
        except Exception as error:
            self._say(f"no digests are exchanged with other nodes: {_one_line(error)}")
            self._write_outcome(set(), {}, set(), _one_line(error))
            self._over.set()
            return
        self.start()

    def finish(self) -> None:
        """At the end of the program: waits for a bounded time until this rank is done."""
        if os.getpid() != self._pid or not self.begun or self._over.wait(LOOK_S):
            return
        if self._rank == 0:
            self._tell(f"waiting for the digests of other nodes ({WAIT}=0 waits a minute at most)")
        failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if not self._over.wait(FAILED_S if failed is not None else wait_s() + WAIT_S):
            self._hurry.set()
            self._over.wait(LAST_S)

    def run(self) -> None:
        try:
            if self._rank == 0:
                self._collect()
            elif not (self._folder / rank_file(0)).exists():  # else rank 0's node has the digest already
                self._send()
        except Exception as error:
            self._say(f"the exchange with other nodes ended: {_one_line(error)}")
        finally:
            self._over.set()

    # -- a rank of another node

    def _send(self) -> None:
        assert self._mailbox is not None
        message, end = None, time.monotonic() + OWN_S
        while time.monotonic() < end:
            if message is None and (message := self._own()) is not None:
                end = time.monotonic() + max(wait_s(), AGREE_S)
            if message is not None and self._mailbox.has(CALL):
                break
            time.sleep(LOOK_S)
        else:
            self._say(f"rank {self._rank}: {'rank 0 did not ask for digests' if message else 'no digest was made'}")
            return
        try:
            number = number_of(self._key, self._mailbox.take(CALL, 1 << 10))
        except ValueError:
            self._say(f"rank {self._rank}: what rank 0 sent is not signed with this node's {TOKEN}: nothing is sent")
            return
        self._mailbox.put(_name(self._rank), seal(self._key, number, message))
        log(self._folder, f"rank {self._rank} sent {len(message.body):,} bytes to rank 0")

    def _own(self) -> Message | None:
        """This rank's digest, or the note that says why there is none; None if neither exists yet."""
        note = read_json(self._folder / NODES / no_digest_file(self._rank))
        if note is not None:
            return Message(self._rank, NOTE, str(note.get("why")).encode("utf-8", "replace")[:1000])
        try:
            with open_regular(self._folder / digest_file(self._rank)) as file:
                body = file.read(LARGEST_MESSAGE_BYTES + 1)
        except OSError:
            return None
        if len(body) > LARGEST_MESSAGE_BYTES:
            return Message(self._rank, NOTE, b"its digest is larger than a message may be")
        return Message(self._rank, DIGEST, body)

    # -- rank 0

    def _collect(self) -> None:
        assert self._mailbox is not None
        received: set[int] = set()
        notes: dict[int, str] = {}
        dropped: set[int] = set()
        failed = None
        try:
            number = self._number or self._call()
            end, own = time.monotonic() + OWN_S, False
            while True:
                own, end = self._deadline(own, end)
                late = time.monotonic() > end or self._hurry.is_set()
                waited_for = self._wanted - received - dropped - self._here()
                for rank in sorted(waited_for):
                    if not self._mailbox.has(_name(rank)):
                        continue
                    try:
                        data = self._mailbox.take(_name(rank), LARGEST_MESSAGE_BYTES + _ENVELOPE_BYTES)
                        message = unseal(self._key, number, rank, data)
                    except ValueError:
                        dropped.add(rank)
                        self._say(f"a message in the name of rank {rank} does not verify and was dropped")
                        continue
                    received.add(rank)
                    if message.kind == NOTE:
                        notes[rank] = message.body.decode("utf-8", "replace")
                    self._keep(message)
                    self._mailbox.forget(_name(rank))
                if late or waited_for <= received | dropped:
                    break
                time.sleep(LOOK_S)
        except Exception as error:
            failed = _one_line(error)
            self._say(f"the exchange with other nodes ended: {failed}")
        self._write_outcome(received, notes, dropped, failed)

    def _call(self) -> bytes:
        """Opens the exchange and returns its number."""
        assert self._mailbox is not None
        call = new_call(self._key)
        self._number = number_of(self._key, call)
        self._mailbox.put(CALL, call)
        return self._number

    def _deadline(self, own: bool, end: float) -> tuple[bool, float]:
        """The deadline for the other ranks: it starts once rank 0's own digest exists."""
        if not own and self._own() is not None:
            return True, time.monotonic() + wait_s()
        return own, end

    def _here(self) -> set[int]:
        """Ranks whose recordings are in this folder."""
        return {rank for rank in self._wanted if rank == 0 or (self._folder / rank_file(rank)).exists()}

    def _keep(self, message: Message) -> None:
        if message.kind == NOTE:
            self._write_note(message.rank, message.body.decode("utf-8", "replace"))
            return
        with whole_file(self._folder / NODES / digest_file(message.rank), 0o600) as file:
            file.write(message.body)

    def _write_outcome(self, received: set[int], notes: dict[int, str], dropped: set[int], failed: str | None) -> None:
        if self._rank != 0:
            return
        waited_s = round(time.monotonic() - self._begun_s, 1)
        silent = self._wanted - received - dropped - self._here()
        write_json(self._folder / NODES / EXCHANGE, {
            "received": sorted(received), "without_digest": {str(rank): notes[rank] for rank in sorted(notes)},
            "dropped": sorted(dropped), "silent": sorted(silent), "waited_s": waited_s, "failed": failed,
        })  # fmt: skip

    def _write_note(self, rank: int, why: str) -> None:
        write_json(self._folder / NODES / no_digest_file(rank), {"why": why})

    def _say(self, message: str) -> None:
        log(self._folder, message)
        self._tell(message)


def _mailbox() -> Mailbox:
    """Raises OSError for a folder that cannot be used, RuntimeError where the program has no store."""
    shared = os.environ.get(SHARED)
    if shared:
        return FolderMailbox(Path(shared), job_name())
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        raise RuntimeError("the program has no process group of torch.distributed")
    return StoreMailbox(distributed.distributed_c10d._get_default_store())


def _name(rank: int) -> str:
    return f"rank{rank}"


def _one_line(error: Exception) -> str:
    """The error in one line, without the stack that torch adds, and without secrets."""
    text = str(error).strip().partition("\n")[0]
    return redact_text(f"{type(error).__name__}: {text}" if text else type(error).__name__)[:300]
