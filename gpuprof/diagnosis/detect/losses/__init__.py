"""The output layer, losses and what is logged after a forward pass."""
