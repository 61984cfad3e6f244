"""Attention over a cut sequence: masks, steps, methods, seconds."""
