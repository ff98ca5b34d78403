"""Running trainings seen from outside: lists armed ones, records in one, and watches its step time."""
