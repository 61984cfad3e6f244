"""Ranks as threads: how they park, are woken and end (`base`), and the engine of a world in one process (`engine`)."""
