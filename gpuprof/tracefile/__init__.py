"""Traces as columns: the model (`model`), and one package per file format that fills it."""
