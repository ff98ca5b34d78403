"""From a trace to a diagnosis: `diagnose` the pure function, `model` its result, one module per question it answers."""
