"""A step on a mesh: its groups and sums, its losses, and the checks that see a mistake."""
