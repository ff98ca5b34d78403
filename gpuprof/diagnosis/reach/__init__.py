"""What a step should cost, and what it costs beyond that."""
