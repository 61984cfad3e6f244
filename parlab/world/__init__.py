"""Ranks, messages, collectives, logs, and the simulated clock.

`run` starts a rank program on threads or processes; `Comm` is what the program talks to; `Timeline` is what happened.
"""

from parlab.world.cluster import CLASSROOM, DGX_A100, DGX_H100, Cluster, Device, Link
from parlab.world.comm import Comm
from parlab.world.errors import DeadlockError, MismatchError, RemoteError, RequestError, WorldError
from parlab.world.fit import fit_cluster
from parlab.world.requests import Request
from parlab.world.run import Run, per_rank, run
from parlab.world.timeline import Span, Timeline, Transfer, Wait
