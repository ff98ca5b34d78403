"""The graph as it would have run without a profiler: what recording costs, and how that is removed."""
