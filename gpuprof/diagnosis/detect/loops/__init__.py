"""Loops of Python over samples, experts, tensors or time steps."""
