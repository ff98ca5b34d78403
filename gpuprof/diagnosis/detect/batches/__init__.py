"""Batches: how a step scales with their samples and tokens."""
