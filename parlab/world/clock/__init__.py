"""The simulated clock: what each rank logged (`log`), numbered (`trace`), and timed on a cluster (`replay`)."""
