"""Several ranks: their joint replay, and what work a slow one does in addition to the others'."""
