"""What is trained, and what with: the program, its model, its data, and calls that repeat."""
