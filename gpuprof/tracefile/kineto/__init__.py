"""PyTorch Profiler (Kineto) traces, Chrome JSON text: plain or gzip, 2021 to today, whole or broken.

`layout` says what becomes of an event. Two readers fill its rows: `msgspec_reader` (below about 100 MB, nothing to
compile) and `stream` (numba; blocks through a byte scanner). `repair` mends invalid events, `build` makes the Trace.
The stream: `source` (text of a file) → `blocks` (cut before events) → `scan` (the compiled kernels; `scan_plan`
describes the layout) → `strings` and `columns` (which grow as the file is read), put in order by `stream`.
"""
