"""What the memory peak consists of, and what each change would save and cost."""
