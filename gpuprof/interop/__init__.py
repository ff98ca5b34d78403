"""Passes recordings on to other tools and file formats. Pure functions; nothing is decided here."""
