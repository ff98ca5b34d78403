"""The mean step of a run: its wall time, measured without a profiler, and where that goes."""
