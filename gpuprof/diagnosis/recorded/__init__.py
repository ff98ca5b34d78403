"""What a trace says by itself: what it holds, how reliable it is, where its time went, and its replay."""
