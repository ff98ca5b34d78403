"""How fast traces load (`python -m benchmarks.load`), and traces to find out with (`benchmarks.generate`)."""
