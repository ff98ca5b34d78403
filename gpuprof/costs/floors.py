"""How short small kernels get that do some work, whatever the GPU's rates; ns.

A kernel that does next to nothing is in `ceilings.LAUNCH_FLOOR_NS`.
"""

ELEMENTWISE_FLOOR_NS = 1_200.0
"""An elementwise kernel."""
MATMUL_FLOOR_NS = 4_000.0
"""A matrix multiplication: 3 to 5 µs recorded on an H200 for ones with under a microsecond of work."""
THIN_MATMUL_FLOOR_NS = 3_000.0
"""A matrix multiplication in half precision with one narrow side, as a LoRA adapter's: the lower end of these."""
