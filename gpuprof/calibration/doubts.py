"""What makes a verdict uncertain: shares of the confidence lost for what a recording lacks; and how much of the doubt
about a fix is left.

Those of the verdict are chosen, not fitted: no recording with a known truth gets a wrong verdict, even if evidence is
left out of it, so a fit would set all of them to 0. `python -m benchmarks.confidence` counts verdicts by their
confidence.
"""

from __future__ import annotations

from gpuprof.calibration.number import Number

_TRUTHS = ("scenarios", "tests/data/pairs")
_COMMAND = "python -m benchmarks.confidence"

PER_UNEXPLAINED = Number(
    1.5, 1.0, 2.0, "", "assumed",
    "Confidence lost for each share of the step that waits for unknown reasons: a third of a step unexplained halves "
    "it, as what waits may be any resource.",
    _TRUTHS, _COMMAND,
)  # fmt: skip
PER_START_UP = Number(
    1.0, 0.5, 1.5, "", "assumed",
    "The same for each share of the window in which the program starts: no later step has it.",
    _TRUTHS, _COMMAND,
)  # fmt: skip
PER_LONE_COPY = Number(
    0.8, 0.5, 1.0, "", "assumed",
    "The same for the share that a single copy takes of the only recorded step: a model that is moved to the GPU looks "
    "like that.",
    _TRUTHS, _COMMAND,
)  # fmt: skip
PER_UNLAUNCHED = Number(
    0.7, 0.4, 1.0, "", "assumed",
    "The same for each share of the GPU's time whose launch was not recorded.",
    _TRUTHS, _COMMAND,
)  # fmt: skip
PER_UNMODELLED = Number(
    0.5, 0.3, 1.0, "", "assumed",
    "The same for each share of the GPU's time whose limit is not known, where the verdict is about that.",
    _TRUTHS, _COMMAND,
)  # fmt: skip
PER_SILENT = Number(
    0.4, 0.2, 0.7, "", "assumed",
    "The same for each share of the window in which the CPU recorded nothing up to its end while the GPU worked; where "
    "the GPU idles as well it is the whole share.",
    _TRUTHS, _COMMAND,
)  # fmt: skip
SILENT_END = Number(
    0.05, 0.02, 0.15, "", "assumed",
    "Share of the window after the CPU's last event that is the ordinary end of a step; beyond it the recording is "
    "silent.",
    _TRUTHS, _COMMAND,
)  # fmt: skip
ONE_STEP = Number(
    0.1, 0.05, 0.2, "", "assumed",
    "Confidence lost with a single recorded step.",
    _TRUTHS, _COMMAND,
)  # fmt: skip
NO_STEPS = Number(
    0.3, 0.2, 0.5, "", "assumed",
    "Confidence lost without steps: the window holds start-up and whatever else was recorded.",
    _TRUTHS, _COMMAND,
)  # fmt: skip
NO_CEILINGS = Number(
    0.4, 0.3, 0.6, "", "assumed",
    "Confidence lost by verdicts about kernels where the GPU's ceilings are not known.",
    _TRUTHS, _COMMAND,
)  # fmt: skip
STEPS_ALIKE = Number(
    0.2, 0.1, 0.3, "", "assumed",
    "Recorded steps may differ by this share (10th to 90th percentile over the median) at no cost.",
    _TRUTHS, _COMMAND,
)  # fmt: skip
PER_SPREAD = Number(
    0.5, 0.3, 1.0, "", "assumed",
    "Confidence lost for each share by which recorded steps differ beyond that.",
    _TRUTHS, _COMMAND,
)  # fmt: skip
MOST_SPREAD = Number(
    0.4, 0.3, 0.6, "", "assumed",
    "The most that differing steps cost.",
    _TRUTHS, _COMMAND,
)  # fmt: skip
PER_MISSING_RANK = Number(
    1.0, 0.5, 1.5, "", "assumed",
    "Confidence lost for each share of the step in communication that nothing overlaps, times the share of the ranks "
    "that were not recorded: what limits the one that is waited for may be something else.",
)  # fmt: skip
SILENT_WORKS = Number(
    0.5, 0.3, 0.8, "", "assumed",
    "Share of the time after the CPU's last event in which the GPU works, from which on the CPU is taken to wait for "
    "it: chosen between an engine's pass (0.9 and more) and a recording whose CPU part ended early. In none of 211 "
    "recordings of trainings and inference does it change a verdict.",
)  # fmt: skip
DOUBT_LEFT = Number(
    0.7, 0.0, 0.7, "", "fitted",
    "Of the assumed probability that a fix does not work, for what it needs and the recording does not show, the share "
    "that measurements leave. Of 14 such fixes in *Worth trying* that were measured on programs of the role fit, 3.3 "
    "should have failed, and none did: with 0.7 of the doubt that has a probability of 0.1. That end of it is "
    "taken, since the programs were written to have what their fixes change, and a change whose condition does not "
    "hold is not measured at all; for the same reason the list of a fix goes by the assumed probability. No recording "
    "shows how often conditions fail elsewhere.",
    ("scenarios",), "python -m benchmarks.recall",
)  # fmt: skip
