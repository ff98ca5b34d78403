"""Shortest times of small kernels that do some work, independent of the GPU's rates, ns.

A kernel that does next to nothing is in `ceilings.LAUNCH_FLOOR_NS`.
"""

from gpuprof.calibration import latency as calibrated

ELEMENTWISE_FLOOR_NS = calibrated.ELEMENTWISE_NS.value
"""An elementwise kernel."""
MATMUL_FLOOR_NS = calibrated.MATMUL_NS.value
"""A matrix multiplication."""
THIN_MATMUL_FLOOR_NS = calibrated.THIN_MATMUL_NS.value
"""A matrix multiplication in half precision with one narrow side, as a LoRA adapter's."""
