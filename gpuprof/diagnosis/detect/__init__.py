"""Facts and types that several findings, the comparison, the projection or the memory advice need."""
