"""A window of steps under a profiler: torch.profiler's or Nsight Systems', and the memory it may take."""
