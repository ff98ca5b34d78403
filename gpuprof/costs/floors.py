"""Shortest times of small kernels that do some work, independent of the GPU's rates, ns.

A kernel that does next to nothing is in `ceilings.LAUNCH_FLOOR_NS`.
"""
