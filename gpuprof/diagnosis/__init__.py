"""From a trace to a diagnosis: `diagnose` is the function, `diagnosis` its result, with one module per question."""
