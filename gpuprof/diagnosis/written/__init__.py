"""A diagnosis as JSON: written, in brief for an agent, and read again."""
