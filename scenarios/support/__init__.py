"""What the scenarios share: their switches and their clock, models by name, data by its lengths, the plain loop."""
