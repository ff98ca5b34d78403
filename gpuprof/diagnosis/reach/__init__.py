"""What a step should cost, and what lies above that."""
