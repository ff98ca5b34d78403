"""What the sampled Python stacks of unprofiled steps say: functions on the CPU, and where they run."""
