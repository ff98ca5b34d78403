"""What a finding proposes: a change of the graph, with a description that a person can act on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from gpuprof.diagnosis.result.finding_model import Evidence
from gpuprof.diagnosis.result.fix import Fix
from gpuprof.units import Assumed, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.replay.bound import Bound
    from gpuprof.replay.loader_queue import Loader

LEAST_GAIN: Assumed[Ratio] = 1.05
"""Smallest expected gain that is advised: steps of one program vary by this factor."""
SURE_GAIN: Assumed[Ratio] = 1.02
"""A fix is sure if it gains this much at the low end of its 80 % interval: nine in ten do."""
CERTAIN_CHANCE: Assumed[Share] = 0.9
"""Smallest probability of a sure fix that also needs something a recording does not show."""
NEGLIGIBLE_CHANGE: Assumed[Share] = 0.01
"""A step that changes by less than this share counts as unchanged."""
LEAST_CHANCE: Assumed[Share] = 0.5
"""A fix with a smaller probability to gain that much is not worth trying."""
SEVERE_GAIN: Assumed[Ratio] = 1.3
MARKED_GAIN: Assumed[Ratio] = 1.1
"""Speedups from which a finding is of high and of medium severity."""

Claim = Literal[
    "free_memory", "padded_rows", "matmul_types", "fp32_matmuls", "small_kernels", "reference_ops", "compiled_code",
    "graph_capture", "fused_loss_ops", "logits", "values_read", "value_waits", "attention", "offloaded_copies",
    "optimizer_step", "decoding",
]  # fmt: skip
"""What fixes compete for. free_memory: room on the GPU for more work at once. padded_rows: a batch's rows, and what
fills them. small_kernels: ops between the matmuls, as fewer kernels or launches. reference_ops: ops that one kernel of
a package replaces, or a compiler. compiled_code: functions that are, or would be, compiled. graph_capture: a pass as
one graph without interruptions. values_read: waits for values that torch's debugging reads. value_waits: waits at
which a compiled function is interrupted."""


@dataclass(frozen=True, slots=True)
class Page:
    """What `gpuprof explain` and docs/findings say about a kind of finding; Markdown."""

    id: str
    title: str
    """Names the problem."""
    means: str
    """What it is and why it costs time."""
    detected: str
    """How a recording shows it, with the thresholds and their reasons."""
    gain: str
    """How the predicted step is computed."""
    wrong: str
    """When the prediction or the advice is wrong."""
    applies: tuple[str, ...] = ("training", "inference")
    """Kinds of work in which it is looked for; unknown work is treated as training."""
    removes: Bound | None = None
    """The verdict that names this problem: with it, the fix comes before others that gain about the same."""

    def applies_to(self, kind: str) -> bool:
        """Whether a recording of this kind of work can have the problem."""
        return ("training" if kind == "unknown" else kind) in self.applies


@dataclass(frozen=True, slots=True)
class Proposal:
    """One fix for one recording."""

    title: str
    """The fix in a few words, for lists of fixes."""
    evidence: tuple[Evidence, ...]
    fix: Fix
    """What to do, for the stack of the recording."""
    change: Change
    """The expected effect of the fix on the graph."""
    best: Change | None = None
    """The effect in the best case; `worst` in the worst case: eight in ten lie between. None: as expected."""
    worst: Change | None = None
    work: float = 1.0
    """Work of a step with the fix / without: 8 for eight times the batch."""
    same_batch: bool = False
    """Whether the additional work comes without a larger batch: other processes do it, or interruptions disappear."""
    least_ns: float = 0.0
    """Lower bound of the step for a reason outside the graph (workers that prepare batches), ns."""
    loader: Loader | None = None
    """The workers that prepare batches after the fix; None: as before."""
    loader_ends: tuple[Loader, ...] = ()
    """The same in the best and in the worst case; empty: as expected."""
    lumps: Mapping[str, float] = field(default_factory=dict)
    """Cause of excess (`save`, `logging` …) → factor on its time in the mean step."""
    spread: float = 1.0
    """Further factor of uncertainty of the predicted step, both ways: 1.1 means 10 %."""
    changes: str = ""
    """What it changes about the training itself (samples per optimizer step, rounding); empty: nothing."""
    once_ns: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """What it costs once before it gains (compiling): low, expected, high."""
    claims: tuple[Claim, ...] = ()
    """What it acts on that only one fix can act on. Of fixes that share a claim only one is combined with others,
    because they do the same in another way, or leave each other nothing to act on."""
    launches: bool = False
    """Whether it only makes launches and kernels faster: it gains at most the GPU's waiting for the CPU, plus what its
    kernels get shorter."""
    last: bool = False
    """Whether it rewrites what the other fixes leave (a compiler), and so is applied after them: it cannot also speed
    up what they replace."""
    needs: str = ""
    """For a chain of fixes: what must be done first, or must hold; empty: nothing."""
    odds: float = 1.0
    """Probability that it works at all, if the recording does not show what it needs; otherwise it gains nothing."""
    parts: tuple[str, ...] = ()
    """The fixes of a chain in a few words each, in order; empty for a single fix."""
    item: tuple[str, str] | None = None
    """What the ledger of costs above the reach calls what this removes, and why it is there; None: as the finding
    declares."""
    key: str = ""
    """Distinguishes several proposals of one finding."""


@dataclass(frozen=True, slots=True)
class Absent:
    """A usual remedy that its finding does not advise: its name, and the reason from the recording."""

    title: str
    why: Callable[[Analysis], str | None]
    """None: there is nothing to say about this recording."""


Finder = Callable[["Analysis"], Iterable[Proposal]]
"""`find(case)` of a file in findings/: its fixes for a recording; none if the problem is absent."""
