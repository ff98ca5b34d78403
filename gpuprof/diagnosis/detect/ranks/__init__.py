"""Several ranks: their joint replay, and what a slow one does more than the others."""
