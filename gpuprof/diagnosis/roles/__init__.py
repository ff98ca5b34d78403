"""The roles of an RL post-training job that run in separate processes, on one timeline: which waits for which."""
