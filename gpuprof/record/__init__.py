"""What runs around and inside the training process: standard library plus the target's own torch."""
