"""What a training keeps in GPU memory, and what changes of it would save."""
