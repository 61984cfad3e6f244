"""Ranks, messages, collectives, logs, and the simulated clock.

A program talks to what stands in this folder. `run` starts it, and `Comm` is what each rank calls; its `values` are
arrays, `isend` and `irecv` return `requests`, and `collectives` are built from messages. `Timeline` says what happened
when, on the hardware of a `Cluster`. `grid` splits a group by nodes. `errors` are what ranks can do wrong together.

Below stand three packages:

- `engines`: the `tasks` of ranks, the `log` of each and its `memory`; how they wait and are woken (`crew`), and for
  what (`base`); ranks as `threads` of this process.
- `processes`: ranks as processes. `launch` starts them, `engine` runs one in each, `mpi` and `nccl` carry the bytes.
- `clock`: the numbered `trace` of all logs, and the `replay` that times it.

A message's way: `Comm.send` checks the value; the engine's `post_send` offers it; a `Mailbox` (threads) or `transport`
(processes) brings it to the receiver; both engines log it alike, and `replay` says when it moved.
"""

from parlab.world.cluster import CLASSROOM, DGX_A100, DGX_H100, Cluster, Device, Link
from parlab.world.comm import Comm
from parlab.world.errors import DeadlockError, MismatchError, RemoteError, RequestError, WorldError
from parlab.world.fit import fit_cluster
from parlab.world.groups import grid
from parlab.world.requests import Request
from parlab.world.run import Run, per_rank, run
from parlab.world.timeline import Span, Timeline, Transfer, Wait
