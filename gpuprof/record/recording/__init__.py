"""The recording of one process, from its first steps to its last window."""
