"""The phases of an iteration: their names, how they are marked, and the time of each."""
