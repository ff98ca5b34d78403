"""Makes the input of a projection from a diagnosis: the replayed step, its work, and the run's memory."""
