"""Small fine-tunes, each with a known bottleneck, its fix as a switch, and what both measured."""
