"""Nsight Systems as a program: where it lies, what its version can do, how it is run, how its reports become SQLite.

Needs nothing but the standard library. What a report says is read by `gpuprof.tracefile`.
"""
