"""Works on running trainings from outside: lists armed ones, records one, and watches its step time."""
