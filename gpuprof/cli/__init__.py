"""The command line: one file per command; each parses, calls the API and prints."""

from gpuprof.cli.entry import main

__all__ = ["main"]
