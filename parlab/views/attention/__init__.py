"""Attention over a cut sequence: masks, steps, growth."""
