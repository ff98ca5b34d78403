"""What a step computes again though nothing has changed, or for nothing."""
