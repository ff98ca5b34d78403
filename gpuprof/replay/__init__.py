"""The step as a graph of work and waits, and what it takes when something about it changes."""
