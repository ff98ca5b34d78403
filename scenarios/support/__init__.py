"""What the scenarios share: switches, timing, models by name, data by its lengths, and the plain training loop."""
