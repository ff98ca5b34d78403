"""Fixes tried on the user's own command: fresh processes, one fix applied from outside, measured next to predicted."""
