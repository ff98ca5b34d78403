"""PyTorch Profiler (Kineto) traces, Chrome JSON text: plain or gzip, 2021 to today, whole or broken.

`layout` says what becomes of an event. Two readers fill its rows: `small` (msgspec; under some 100 MB, no compile)
and `stream` (numba; blocks through a byte scanner). `repair` mends the odd event, `build` makes the Trace.

The stream: `source` (text of a file) → `blocks` (cut before events) → `scan` (the compiled kernels; `scan_plan`
describes the layout) → `strings` and `columns` (what grows as the file is read), put in order by `stream`.
"""
