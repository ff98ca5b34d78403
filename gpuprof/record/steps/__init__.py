"""When a step ends, how long it takes, and what each step of a run is used for."""
