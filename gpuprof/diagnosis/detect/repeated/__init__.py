"""What a step computes again although nothing has changed, or computes and never uses."""
