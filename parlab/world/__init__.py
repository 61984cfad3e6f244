"""Ranks, messages, collectives, logs, and the simulated clock.

`run` starts a rank program on threads or processes; `Comm` is what the program talks to; `Timeline` is what happened.

The room is read from `run` and `program` to `comm`, with its `values`, `requests` and `collectives`; then `engine` and
`threads`, which let ranks wait and meet on what `seats` says; then from `log` over `trace` and `replay` to `timeline`:
the clock. `diagnosis` and `errors` say why nobody can move. Ranks as processes are one layer more: `starters` and
`launch` start them, `handover` brings the program, `processes` is their engine, over a `transport` (`mpi`; or `nccl`,
by `door` and `side`), and `verdict`, `records` and `wallclock` bring together what each of them knows.
"""

from parlab.world.cluster import CLASSROOM, DGX_A100, DGX_H100, Cluster, Device, Link
from parlab.world.comm import Comm
from parlab.world.errors import DeadlockError, MismatchError, RemoteError, RequestError, WorldError
from parlab.world.fit import fit_cluster
from parlab.world.requests import Request
from parlab.world.run import Run, per_rank, run
from parlab.world.timeline import Span, Timeline, Transfer, Wait
