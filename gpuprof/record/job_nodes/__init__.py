"""A job on several nodes: messages between them, and one verdict for all."""
