"""What a Diagnosis looks like on a terminal and in a notebook. Pure functions; nothing is decided here."""
