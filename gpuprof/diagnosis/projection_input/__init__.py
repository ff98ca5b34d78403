"""From a diagnosis to what a projection starts from: the replayed step, its work, and the memory of the run."""
