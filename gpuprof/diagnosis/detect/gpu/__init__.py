"""Kernels: how long they should take, and what fused or narrower ones take."""
