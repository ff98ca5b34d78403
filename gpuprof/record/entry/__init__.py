"""How a recording begins: armed at the start, asked for later, or from inside the program."""
