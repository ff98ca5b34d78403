"""Loops of Python over a few small ops, written as ops over all rounds at once."""

from __future__ import annotations

from gpuprof.calibration.number import Number

ROUNDS_LEFT = Number(
    2.0, 1.0, 4.0, "rounds", "assumed",
    "Launches and Python code of the ops over all rounds, in units of one round of the loop: 1 if each op takes the "
    "whole batch, more if values have to be stacked, indexed or separated.",
)  # fmt: skip
GPU_LEFT = Number(
    0.5, 0.2, 1.0, "", "assumed",
    "Share of the loop's GPU time that the same work takes in few kernels.",
)  # fmt: skip
INDEPENDENT = Number(
    0.7, 0.5, 0.9, "", "assumed",
    "Probability that no round needs the result of the one before, which ops without their tensors do not show.",
)  # fmt: skip
ROW_OP_NS = Number(
    1_500.0, 700.0, 4_000.0, "ns", "assumed",
    "CPU time of an op on an array of some thousand numbers in NumPy, in place of a kernel for it.",
)  # fmt: skip
ROW_COPIES_NS = Number(
    100_000.0, 30_000.0, 300_000.0, "ns", "assumed",
    "CPU time of copying the few tensors of a loop over rows to the CPU, and its result back.",
)  # fmt: skip
BATCHED_PASS = Number(
    3.0, 2.0, 6.0, "passes", "assumed",
    "CPU time of a pass of autograd that is batched over outputs, in passes for one of them: a rule for each op adds "
    "dimensions and moves them.",
)  # fmt: skip
BATCHED_PASS_ODDS = Number(
    0.75, 0.5, 0.9, "", "assumed",
    "Probability that passes of autograd for several outputs can be batched: that torch has a rule for each op, and "
    "that memory suffices for all of them at once.",
)  # fmt: skip
JOINED = Number(
    0.65, 0.4, 0.85, "", "assumed",
    "Probability that two rounds of a loop over small ops that carries a state can be joined to one.",
)  # fmt: skip
SEPARATE = Number(
    0.85, 0.6, 0.95, "", "assumed",
    "Probability that the ops over all rounds gain if each round has its own tensor (norms, copies): no pair of "
    "programs has been timed.",
)  # fmt: skip
AT_ONCE = Number(
    0.8, 0.5, 0.95, "", "assumed",
    "Probability that passes of one model over different inputs can be one pass: that none reads what the one before "
    "returned in a way that ops do not show (a token that was chosen), and that samples can be joined to one batch.",
)  # fmt: skip
AT_ONCE_PADDED = Number(
    0.65, 0.4, 0.85, "", "assumed",
    "The same where the inputs have different shapes, and must be padded to one.",
)  # fmt: skip
COMPARED = Number(
    0.85, 0.6, 0.95, "", "assumed",
    "Probability that a function without trained weights, which is called on both sides of a comparison, takes both in "
    "one batch: that it treats samples one by one, and that its tables are the same in both calls.",
)  # fmt: skip
CALLS_LEFT = Number(
    0.25, 0.1, 1.0, "", "assumed",
    "Share of the calls for one row each that is left where results are read between them and a recording does not "
    "show how many rows are known at once; each call may need the one before.",
)  # fmt: skip
BRANCHES = Number(
    0.7, 0.5, 0.9, "", "assumed",
    "Probability that branches of the same shapes, of which none multiplies what another one returned, can be one "
    "batched multiplication, or one call on all inputs.",
)  # fmt: skip
ONE_LOSS = Number(
    0.7, 0.5, 0.9, "", "assumed",
    "Probability that a loss that is computed for one output after another can take all at once, or can reuse the "
    "result for one of them.",
)  # fmt: skip
LAST_LOSS = Number(
    0.55, 0.3, 0.7, "", "assumed",
    "Probability that losses of fewer of a model's outputs are enough.",
)  # fmt: skip
