"""What a Kineto event becomes: its table, and the row fields that its keys fill.
Both readers (`msgspec_reader`, `stream`) produce rows of these dtypes and `build` turns them into a Trace, so that each
can be tested against the other. Rows carry `pid` and `tid` as string ids; everything else has the names of the model's
columns.
"""

from __future__ import annotations

import numpy as np

TABLES = ("ops", "calls", "gpu", "frames", "syncs", "memory", "flows", "other")
OPS, CALLS, GPU, FRAMES, SYNCS, MEMORY, FLOWS, OTHER = range(len(TABLES))

_TRACK = "pid:i4 tid:i4"
_SPAN = f"start_ns:i8 end_ns:i8 name:i4 {_TRACK}"
_GPU = "device:i4 stream:i8 correlation:i8"
_GRID = "grid_x:i4 grid_y:i4 grid_z:i4 block_x:i4 block_y:i4 block_z:i4"
_SHAPES = "dims:i4 types:i4 strides:i4 concrete:i4"


def _row(fields: str) -> np.dtype:
    return np.dtype([(name, kind) for name, kind in (field.split(":") for field in fields.split())])


ROWS: dict[str, np.dtype] = {
    "ops": _row(f"{_SPAN} external:i8 sequence:i8 forward_thread:i8 {_SHAPES} stack:i4 extra:i4 kind:u1"),
    "calls": _row(f"{_SPAN} correlation:i8 external:i8 kind:u1"),
    "gpu": _row(
        f"{_SPAN} {_GPU} external:i8 {_GRID} registers:i4 shared_bytes:i8 occupancy:f4 bytes:i8 graph_node:i8"
        " extra:i4 kind:u1"
    ),
    "frames": _row(f"{_SPAN} python_id:i8 parent_id:i8 module_id:i8"),
    "syncs": _row(f"{_SPAN} {_GPU} wait_stream:i8 wait_correlation:i8"),
    "memory": _row(
        f"time_ns:i8 {_TRACK} device_type:i8 device:i8 address:i8 bytes:i8 allocated_bytes:i8 reserved_bytes:i8"
    ),
    "flows": _row(f"time_ns:i8 {_TRACK} id:i8 kind:u1 begins:u1"),
    "other": _row(f"{_SPAN} category:i4 external:i8"),
}

# The category decides the table and the row's `kind`. Names of 2021 (Operator, Kernel, …) are included.
CATEGORIES: dict[str, tuple[int, int]] = {
    "cpu_op": (OPS, 0),
    "Operator": (OPS, 0),
    "user_annotation": (OPS, 1),
    "cuda_runtime": (CALLS, 0),
    "Runtime": (CALLS, 0),
    "hip_runtime": (CALLS, 0),
    "xpu_runtime": (CALLS, 0),
    "privateuse1_runtime": (CALLS, 0),
    "mtia_runtime": (CALLS, 0),
    "cuda_driver": (CALLS, 1),
    "hip_driver": (CALLS, 1),
    "xpu_driver": (CALLS, 1),
    "privateuse1_driver": (CALLS, 1),
    "kernel": (GPU, 0),
    "Kernel": (GPU, 0),
    "gpu_memcpy": (GPU, 1),
    "Memcpy": (GPU, 1),
    "gpu_memset": (GPU, 2),
    "Memset": (GPU, 2),
    "python_function": (FRAMES, 0),
    "cuda_sync": (SYNCS, 0),
    "ac2g": (FLOWS, 0),
    "async_cpu_to_gpu": (FLOWS, 0),
    "async_gpu": (FLOWS, 0),
    "async": (FLOWS, 0),
    "fwdbwd": (FLOWS, 1),
    "forward_backward": (FLOWS, 1),
}

# Keys of `args` with a whole number, and the row field it fills (per table, where the table has that field).
NUMBER_KEYS: dict[str, str] = {
    "External id": "external",
    "external id": "external",
    "External Id": "external",
    "correlation": "correlation",
    "Sequence number": "sequence",
    "Fwd thread id": "forward_thread",
    "device": "device",
    "stream": "stream",
    "registers per thread": "registers",
    "shared memory": "shared_bytes",
    "bytes": "bytes",
    "graph node id": "graph_node",
    "Python id": "python_id",
    "Python parent id": "parent_id",
    "Python module id": "module_id",
    "wait_on_stream": "wait_stream",
    "wait_on_cuda_event_record_corr_id": "wait_correlation",
    "Addr": "address",
    "Bytes": "bytes",
    "Device Type": "device_type",
    "Device Id": "device",
    "Total Allocated": "allocated_bytes",
    "Total Reserved": "reserved_bytes",
}
# Keys whose value is kept as raw JSON text; for a plain string (`Call stack`) the text between the quotes.
TEXT_KEYS: dict[str, str] = {
    "Input Dims": "dims",
    "Input type": "types",
    "Input Strides": "strides",
    "Concrete Inputs": "concrete",
    "Call stack": "stack",
}
VECTOR_KEYS = {"grid": "grid", "block": "block"}
FLOAT_KEYS = {"est. achieved occupancy %": "occupancy"}
# An event with this key keeps all its args as text in `extra`.
EXTRA_KEY = "Collective name"

# Row fields that hold the number of a text.
TEXT_FIELDS = frozenset({"name", "category", "pid", "tid", "extra", *TEXT_KEYS.values()})
