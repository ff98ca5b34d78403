"""Changes of the recorded step: another batch, depth, GPU or CPU."""
