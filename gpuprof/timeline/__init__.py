"""What follows from a trace without judgement: nesting, links, categories, steps, phases, the device partition, quality."""
