"""The recorded step on other GPUs: its time, what fits, and its cost."""
