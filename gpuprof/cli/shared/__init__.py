"""Shared by several commands: finding the recording, output, gates, and what follows a recording."""
