"""Ranks as processes: `launch` starts them, `engine` runs one rank in each, over a `transport` (`mpi` or `nccl`)."""
