"""What everything in this room builds on: guards and hooks in the training, queries to torch, options, and what is
written down."""
