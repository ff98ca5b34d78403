"""torch.compile and CUDA graphs: what they would make of a step, what stops them, what they cost."""
