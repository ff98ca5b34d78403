"""Finds why a job hangs: the rank and the line, from flight recorder dumps, Python stacks and processes."""
