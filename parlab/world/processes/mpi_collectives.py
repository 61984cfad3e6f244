"""MPI's own collectives, in the place of ours.

Importing this module starts MPI.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI


def memory_of(x: np.ndarray) -> np.ndarray:
    """The bytes of `x`, which is in C order: an array on the same memory."""
    return x.reshape(-1).view(np.uint8)


def mpi_buffer(x: np.ndarray) -> list[Any]:
    """The bytes of `x`, as an argument of a call of MPI, whose derived datatypes are many times slower."""
    return [memory_of(x), MPI.BYTE]


OPERATIONS = {"add": MPI.SUM, "multiply": MPI.PROD, "maximum": MPI.MAX, "minimum": MPI.MIN}


class _Started:
    """A collective that MPI has started. It keeps MPI's memory alive; mpi4py does so for some of them only."""

    def __init__(self, request: Any, *memory: Any, into: np.ndarray | None = None):
        self._request, self._memory, self._into = request, memory, into

    def finish_if_over(self) -> bool:
        """Whether this rank's part is over; if it is, the first array of the memory is copied `into`."""
        if not self._request.Test():
            return False
        if self._into is not None:
            self._into[:] = self._memory[0]
        return True


class MPICollectives:
    """MPI's own collectives in one group, each under the name of our algorithm and with its arguments after the comm;
    see `NativeTransport.connect`.
    """

    def __init__(self, comm: Any):
        self._comm = comm

    def free(self) -> None:
        """Give its context back to MPI, which has some two thousand."""
        self._comm.Free()

    def ring_all_reduce(self, x: np.ndarray, combine: Any) -> tuple[_Started, np.ndarray]:
        """MPI_Iallreduce."""
        x = np.array(x, order="C")
        total = np.empty_like(x)
        return _Started(self._comm.Iallreduce(x, total, OPERATIONS[combine.__name__]), x, total), total

    def ring_all_gather(self, flat: np.ndarray, pieces: list[slice]) -> tuple[_Started, None]:
        """MPI_Iallgatherv, in place."""
        buffer = np.ascontiguousarray(flat)  # which it is, unless it is the caller's `out`
        counts = [flat.itemsize * (piece.stop - piece.start) for piece in pieces]  # in bytes, as the starts
        starts = [flat.itemsize * piece.start for piece in pieces]
        request = self._comm.Iallgatherv(MPI.IN_PLACE, [buffer, counts, starts, MPI.BYTE])
        return _Started(request, buffer, into=None if buffer is flat else flat), None

    def ring_reduce_scatter(self, flat: np.ndarray, pieces: list[slice], combine: Any) -> tuple[_Started, None]:
        """MPI_Ireduce_scatter."""
        counts, own = [piece.stop - piece.start for piece in pieces], flat[pieces[self._comm.rank]]
        x = flat.copy()
        return _Started(self._comm.Ireduce_scatter(x, own, counts, OPERATIONS[combine.__name__]), x, own), None

    def pairwise_all_to_all(self, pieces: list[np.ndarray]) -> tuple[_Started, list[np.ndarray]]:
        """MPI_Ialltoall."""
        out = np.stack(pieces)
        back = np.empty(out.shape, out.dtype)  # in C order, in which `out` need not be
        return _Started(self._comm.Ialltoall(mpi_buffer(out), mpi_buffer(back)), out, back), list(back)

    def binomial_broadcast(self, x: np.ndarray, root: int) -> tuple[_Started, np.ndarray]:
        """MPI_Ibcast."""
        x = np.array(x, order="C")
        return _Started(self._comm.Ibcast(mpi_buffer(x), root), x), x

    def binomial_reduce(self, x: np.ndarray, root: int, combine: Any) -> tuple[_Started, np.ndarray | None]:
        """MPI_Ireduce."""
        x = np.array(x, order="C")
        total = np.empty_like(x) if self._comm.rank == root else None
        return _Started(self._comm.Ireduce(x, total, OPERATIONS[combine.__name__], root), x, total), total

    def linear_scatter(self, pieces: list[np.ndarray], root: int) -> tuple[_Started, np.ndarray]:
        """MPI_Iscatter."""
        out = mpi_buffer(np.stack(pieces)) if self._comm.rank == root else None
        own = np.empty(pieces[0].shape, pieces[0].dtype)
        return _Started(self._comm.Iscatter(out, mpi_buffer(own), root), out, own), own

    def linear_gather(self, x: np.ndarray, root: int) -> tuple[_Started, list[np.ndarray] | None]:
        """MPI_Igather."""
        x = np.array(x, order="C")
        back = np.empty((self._comm.size, *x.shape), x.dtype) if self._comm.rank == root else None
        request = self._comm.Igather(mpi_buffer(x), None if back is None else mpi_buffer(back), root)
        return _Started(request, x, back), None if back is None else list(back)

    def dissemination_barrier(self) -> tuple[_Started, None]:
        """MPI_Ibarrier."""
        return _Started(self._comm.Ibarrier()), None
