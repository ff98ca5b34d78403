"""The step as a graph of work and waits, and its time when something about it changes."""
