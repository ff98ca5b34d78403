"""What several commands share: the recording, output, limits, and what follows a recording."""
