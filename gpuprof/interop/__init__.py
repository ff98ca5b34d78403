"""What other tools can do with a recording that gpuprof has read. Pure functions; nothing is decided here."""
