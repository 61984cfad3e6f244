"""Figures of experts on ranks: a token's way, rows between ranks, copies between nodes, pairs that a capacity drops."""
