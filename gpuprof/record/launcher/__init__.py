"""Around the training process: starts it, follows it, and ends as it ended."""
