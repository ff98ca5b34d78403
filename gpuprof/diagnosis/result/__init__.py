"""A diagnosis as plain data: one frozen dataclass per concept, and the fixes that it proposes."""
