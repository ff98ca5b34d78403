"""What a run folder says in addition to its trace: unprofiled steps, work, memory, GPUs and the program."""
