"""What GPUs do apart from their partition: counters, captures, ranges, several at the same time."""
