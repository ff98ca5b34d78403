"""What follows from a trace without judgement: nesting, links, steps, phases, the device partition, quality."""
