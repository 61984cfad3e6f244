"""Ranks as processes. To find your way:

- A run starts in `launch`: `run` calls `run_on_processes`. It asks `machine` for the command, mpiexec, and hands the
  program over to a `worker` in each process. Inside mpiexec the processes are there. Either way each meets the others
  in MPI, in `rank`, and its `engine` runs one rank.
- A message is posted in `engine`. `under_way` shows its steps, and `messages` has its two ends. A `transport`
  carries it: `mpi`, or `nccl` between GPUs.
- A member of a group enters a collective by a note to the `doorkeeper`, rank 0 of the group, which compares the calls.
  Then our algorithm sends its messages; with `native`, MPI's own collective takes its place.
- An error, as a result, comes back in the record of its rank: `records` packs it there, and merges all of them in the
  process that called `run`. `pickling` says how a program and its values leave a process.
- Ranks that wait report to rank 0, the judge, and `deadlock` says whether any of them can move. `wallclock` makes one
  timeline of what their watches said.
"""
