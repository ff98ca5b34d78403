"""Measurements of gpuprof itself, one command per module: accuracy, recall, speed, overhead; and generated traces."""
