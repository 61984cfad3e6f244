"""The serial reference: each piece of a transformer, forward and backward, and the optimizer."""
