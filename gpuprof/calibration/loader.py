"""A DataLoader and its workers."""

from __future__ import annotations

from gpuprof.calibration.number import Number

_WORKERS = (
    "scenarios/starved_workers/recording",
    "scenarios/input_starved/recording",
    "tests/data/pairs/input_tokenize.json.gz",
    "shared/traces/h200/tiny_lora_dataloader.json.gz",
)
_REFIT = "python -m benchmarks.calibrate loader"

FETCH_NS = Number(
    600_000.0, 200_000.0, 2_000_000.0, "ns", "assumed",
    "What the training process still does for a batch that a worker has prepared: take it from the queue, map its "
    "memory, hand it to the pinning thread. Two launch-bound programs with 4 and 8 workers took 0.2 ms with pinned "
    "memory and 1.8 ms without.",
)  # fmt: skip
SLOWER_BESIDE_OTHERS = Number(
    1.3, 1.0, 1.6, "", "assumed",
    "How many times longer a worker takes for a batch than the training process does by itself: they share memory and "
    "cores.",
)  # fmt: skip
CROWDED = Number(
    1.2, 1.0, 1.5, "", "assumed",
    "More workers take memory bandwidth and cores from the training's own process: the factor on its CPU time at "
    "worst, which predictions use for their worst case only. Chosen with starved_workers in view.",
    _WORKERS, _REFIT,
)  # fmt: skip
SPREAD = Number(
    1.05, 1.0, 1.5, "", "assumed",
    "How far the pace of more workers is known where it was measured in them; they share the machine's memory and "
    "disks.",
    command=_REFIT,
)  # fmt: skip
SPREAD_INFERRED = Number(
    1.15, 1.0, 1.5, "", "assumed",
    "The same where their pace follows from what the training waited for.",
)  # fmt: skip
RANDOM_LAUNCH_NS = Number(
    20_000.0, 8_000.0, 60_000.0, "ns", "assumed",
    "CPU time of an op that makes random numbers on the GPU instead of the CPU: one launch.",
)  # fmt: skip
FLOAT_PICTURES_NS = Number(
    2.5, 1.0, 5.0, "ns", "assumed",
    "What a loader's worker spends on each value of a picture that it makes a float, normalises and collates into "
    "shared memory, beyond what a byte costs: one core took 0.8 against 0.3 ns for the cast and 2.5 against 0.1 ns for "
    "stacking, and more where the pages of shared memory are new.",
)  # fmt: skip
FLOAT_PICTURES_ODDS = Number(
    0.7, 0.5, 0.9, "", "assumed",
    "Probability that pictures which arrive at the GPU in fp32 were bytes before, and that their last random steps can "
    "work on bytes or move to the GPU.",
)  # fmt: skip
HANDED_OVER_NS = Number(
    120_000.0, 40_000.0, 250_000.0, "ns", "assumed",
    "What one thread of the training process does for each tensor of a batch that a worker hands over: it asks the "
    "worker for the file descriptor of its shared memory, maps it, and pins it. One core took 165 to 180 µs for "
    "tensors of 16 bytes without pinning; a published detector that packed 114 tensors into 9 saved some 250 µs each.",
)  # fmt: skip
CROWDED_THREADS = Number(
    0.5, 0.15, 1.0, "", "assumed",
    "Time of ops on tensors in host memory with one thread for each core that the run may use, relative to more "
    "threads than that: threads of one op wait for each other, and for their turn. Published: up to a tenth.",
)  # fmt: skip
CROWDED_THREADS_ODDS = Number(
    0.7, 0.4, 0.9, "", "assumed",
    "Probability that fewer threads gain: ops on small tensors use one thread in any case.",
)  # fmt: skip
PREPARED_ONCE = Number(
    0.4, 0.15, 0.9, "", "assumed",
    "What is left of preparing a sample whose costly part (decoding, resizing, tokenising) is done once and kept: "
    "random steps, copying and collating. Pictures that were decoded once left at most 0.33 of it "
    "(scenarios/cases/image_cache).",
)  # fmt: skip
ONCE_ODDS = Number(
    0.7, 0.5, 0.9, "", "assumed",
    "How likely the costly part of preparing a sample gives the same each time, and its result fits in memory or on a "
    "disk that is quick enough; a recording does not show it.",
)  # fmt: skip
SAMPLE_WORK_LEFT = Number(
    0.1, 0.0, 0.5, "", "assumed",
    "What is left of the work on samples that is done once before the training, on the GPU for the whole batch, or not "
    "at all: reading what was prepared takes time as well.",
)  # fmt: skip
ROWS_AT_ONCE = Number(
    8.0, 4.0, 16.0, "rows", "assumed",
    "What taking all rows of a batch at once costs the CPU, in rows that are taken one by one: an index for each "
    "tensor, and the order of the samples.",
)  # fmt: skip
OWN_ROWS_ODDS = Number(
    0.8, 0.5, 0.95, "", "assumed",
    "Probability that the rows of a batch of a data set of the program's own can be taken at once: what it does for one"
    " row in a few microseconds can be done for all, and has no random step.",
)  # fmt: skip
WHOLE_BATCH = Number(
    1.0, 0.4, 1.6, "", "measured",
    "Taking the rows of a batch with one index per tensor, relative to stacking rows that were taken one by one: both "
    "copy them. One core took 0.9 times as long for 4,096 rows of 48 numbers and 1.2 times for 512 of 784; 1.6 times "
    "for 128 of 12,288.",
)  # fmt: skip
