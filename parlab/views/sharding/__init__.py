"""A block cut by tensor parallelism: who owns what, what it keeps."""
