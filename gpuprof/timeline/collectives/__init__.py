"""Collectives and sends: which ones a recording has, and which of one rank is which of another."""
