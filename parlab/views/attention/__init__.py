"""Attention over a cut sequence: masks, steps, methods, memory."""
