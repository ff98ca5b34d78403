"""Results as screens of text."""
