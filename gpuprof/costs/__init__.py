"""What GPU work costs: the GPUs there are, FLOPs and bytes of a kernel, and what limits it."""
