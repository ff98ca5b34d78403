"""The roles of an RL post-training that run in processes of their own, on one timeline: who waits for whom."""
