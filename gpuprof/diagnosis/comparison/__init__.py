"""Two recordings side by side: where the difference of their steps comes from."""
