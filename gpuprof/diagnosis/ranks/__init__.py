"""Several ranks of one training: which one the others wait for, and why."""
