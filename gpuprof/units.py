"""Types of the numbers in the code, which say how well each is known and in which unit it is.

    EQUAL_WORK: Assumed[Share] = 0.02
    \"\"\"Tokens or samples that differ by less are the same work.\"\"\"

Every number of a module has such a type, a name that says what it bounds, and, unless the name says it all, a
docstring. `python -m benchmarks.constants` lists them. Numbers that were fitted to recordings are in calibration/, with
their intervals. Types cost nothing: code that must start quickly imports them for type checkers only.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

Value = TypeVar("Value")

# How well it is known.
Assumed = Annotated[Value, "assumed"]
"""Chosen by judgement: another value might serve as well."""
Measured = Annotated[Value, "measured"]
"""Read off recordings or timings, which its docstring names."""
Published = Annotated[Value, "published"]
"""From a datasheet, a paper, a file format, or the source or documentation of a library."""
Convention = Annotated[Value, "convention"]
"""Set by definition, not found: a code of ours, or how much is shown or kept."""

# Parts and factors.
Share = float
"""Part of a whole, 0 to 1."""
Ratio = float
"""One quantity divided by another: a factor, bytes per element, passes per call."""
Times = int
"""A whole-number ratio."""
Percent = float
WholePercent = int
Weight = float
"""Of one claim relative to another."""
Cpus = float
"""CPUs' worth of work."""

# Time, space, energy.
Ns = float
WholeNs = int
Ms = float
Seconds = float
WholeSeconds = int
Bytes = int
MiB = int
MB = int
GB = float
Bits = int

# What is counted.
Batches = int
Blocks = int
Calls = int
Copies = int
Cores = int
Count = int
"""Of what the name says."""
Dimensions = int
Draws = int
Elements = int
"""Of a tensor."""
Entries = int
"""Of a list, a table or a cache."""
Events = int
Files = int
Functions = int
Gpus = int
Iterations = int
Kernels = int
Launches = int
Levels = int
"""Of nesting: calls, modules, lists."""
Modules = int
Names = int
Nodes = int
"""Of a graph."""
Ops = int
Parts = int
Points = int
"""Of a line in a chart."""
Processes = int
Ranks = int
Rounds = int
Rows = int
Samples = int
Sequences = int
Sms = int
Spans = int
Steps = int
Tensors = int
Threads = int
Tokens = int
Values = int
Workers = int

# On a page.
Cells = int
"""Columns of a terminal."""
Characters = int
Digits = int
Lines = int
Px = int
FloatPx = float

# Numbers that count nothing.
Code = int
"""Identifies something in a format, a library or a protocol of ours."""
Level = int
"""A setting, such as a compression level."""
Percentile = int
Place = int
"""Index of an argument."""
Seed = int
Version = int
"""One number of a version, or of a compute capability."""
