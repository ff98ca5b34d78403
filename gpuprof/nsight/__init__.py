"""Nsight Systems as a program: finding it, what its version can do, running it, and exporting its reports to SQLite.
Needs only the standard library. The contents of a report are read by `gpuprof.tracefile`.
"""
