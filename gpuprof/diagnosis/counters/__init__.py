"""Nsight Compute's counters next to what the roofline says of the same kernels."""
