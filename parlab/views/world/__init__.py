"""Runs: lanes on a clock, waits, and the messages of collectives."""
