"""The simulated clock: what each rank logged, numbered (`trace`) and timed on a cluster (`replay`)."""
