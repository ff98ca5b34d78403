"""What the CPU does: ops that compute or are slow, calls of the runtime, silence, the profiler itself."""
