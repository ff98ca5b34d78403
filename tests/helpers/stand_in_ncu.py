"""A program that behaves on the command line as Nsight Compute does, as far as gpuprof relies on it.

It runs the target and writes a table as ncu 2025.3 does with --csv --page raw: a column per metric, a line of units,
for kernels whose names match --kernel-name, --launch-count at most. STAND_IN_KERNELS: a file with a kernel a line,
name, grid and block separated by tabs. STAND_IN: forbidden (the driver does not let it count), old
(one of the metrics is not known).
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

PERCENT = {"tensor": 71.5, "dram": 22.25, "sm__throughput": 74.0, "inst_issued": 31.0}
COLUMNS = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
           "Grid Size", "Device", "CC")  # fmt: skip


def main(words: list[str]) -> int:
    """Options with a value each but for --csv, then the target."""
    options: dict[str, str] = {}
    while words[0].startswith("--"):
        name = words.pop(0)
        options[name] = "" if name == "--csv" else words.pop(0)
    assert options["--profile-from-start"] == "off" and options["--clock-control"] == "none", options
    if os.environ.get("STAND_IN") == "old" and "inst_issued" in options["--metrics"]:
        Path(options["--log-file"]).write_text("==ERROR== Failed to find metric sm__inst_issued.avg\n")
        return 1
    code = subprocess.run(words).returncode
    with Path(options["--log-file"].replace("%%", "%")).open("w", newline="") as file:
        file.write("==PROF== Connected to process 1 (/usr/bin/python3.12)\n")
        if os.environ.get("STAND_IN") == "forbidden":
            file.write(
                "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access GPU Performance Counters\n"
            )
            return 1
        kernels = [line.split("\t") for line in Path(os.environ["STAND_IN_KERNELS"]).read_text().splitlines()]
        pattern = options["--kernel-name"].removeprefix("regex:")
        kernels = [one for one in kernels if re.search(pattern, one[0])][: int(options["--launch-count"])]
        if not kernels:
            file.write("==WARNING== No kernels were profiled.\n")
            return code
        metrics = sorted(options["--metrics"].split(","))
        table = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        table.writerow([*COLUMNS, *metrics])
        table.writerow([""] * len(COLUMNS) + ["us" if "time" in name else "%" for name in metrics])
        for at, (name, grid, block) in enumerate(kernels):
            values = ["1,017.57" if "time" in metric else _percent(metric) for metric in metrics]
            table.writerow([at, 7, "python3.12", "127.0.0.1", name, 1, 7, block, grid, 0, "9.0", *values])
    return code


def _percent(metric: str) -> str:
    return next(f"{value:.2f}" for part, value in PERCENT.items() if part in metric)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
