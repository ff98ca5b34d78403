"""The CPU's work in a step, and the lines of code that cause it."""
