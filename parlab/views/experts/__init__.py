"""Experts on ranks: a token's way, rows between ranks, copies, loads."""
