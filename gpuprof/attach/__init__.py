"""Running trainings from outside: which are armed, a recording in one of them, and a watch over its step time."""
