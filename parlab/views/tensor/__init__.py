"""A block cut by tensor parallelism: the numbers and the slices of each rank, the bytes that it keeps, and the time."""
