"""Traces as columns: the model (`trace`), and one package per file format that fills it."""
