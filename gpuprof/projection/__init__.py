"""The recorded step on other GPUs: what it would take, what fits, and what it would cost."""
