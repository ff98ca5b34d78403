"""What limits the step: the verdict, how sure it is, and its sentences."""
