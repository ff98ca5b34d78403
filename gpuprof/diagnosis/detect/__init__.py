"""Facts and types shared by several findings, the comparison, the projection or the memory advice."""
