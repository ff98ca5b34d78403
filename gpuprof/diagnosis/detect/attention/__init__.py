"""Attention: its masks, and how its kernels are planned."""
