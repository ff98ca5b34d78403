"""Converts recordings for other tools and file formats. Pure functions; nothing is decided here."""
