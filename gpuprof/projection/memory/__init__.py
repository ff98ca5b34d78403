"""What a training keeps in GPU memory, and what changes of the training would save."""
