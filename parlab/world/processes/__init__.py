"""Ranks as processes. To find your way:

- A run starts in `launch`: `run` calls `run_on_processes`. It asks `machine` for the command, mpiexec, which starts a
  `worker` for each rank, and hands the program over to them. Inside mpiexec the processes are there. Either way each
  begins by `joining` the others in MPI, and does its part of the `job`: its `engine` runs one rank, with a `pause`
  between its looks at messages and notes.
- A message is posted in `engine`, in one of the `mailboxes` of a group. `under_way` shows its steps, and `messages` has
  its two ends. A `transport` carries it: `mpi`, or `nccl` between GPUs.
- A member of a group enters a collective by a note to the `coordinator`, rank 0 of the group, which compares the calls.
  Then our algorithm sends its messages; with `native`, one of the `mpi_collectives` takes its place.
- An error, as a result, comes back in the record of its rank: `records` packs it there, and merges all of them in the
  process that called `run`. `pickling` says how a program and its values leave a process.
- Ranks that wait report to rank 0, where `deadlock` says whether any of them can move. `wallclock` makes one timeline
  of what their watches said.

A message is *posted* at each of its ends, and later has *passed* there. A collective *begins* when all members have
entered it. A task that waits for either is *blocked*, until it is *released* (`engines/crew.py`). A run is *over* when
no rank can move: as all have left, or as they wait for each other.
"""
