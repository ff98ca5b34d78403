"""Samples of Python stacks, read by another process out of the training's memory."""
