"""A block cut by tensor parallelism: the slices of each rank, the bytes that it keeps, and the time."""
