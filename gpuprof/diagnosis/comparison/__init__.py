"""Compares two recordings: where the difference between their steps comes from."""
