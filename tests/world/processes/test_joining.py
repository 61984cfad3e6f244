"""How a process joins the others."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from parlab.world.processes import joining, machine


def test_a_rank_without_a_gpu_is_refused_each_time_that_it_asks_for_a_transport(monkeypatch):
    asked = []

    def no_gpu(rank, size):
        asked.append((rank, size))
        raise ValueError("size=2: NCCL needs a GPU for each of 2 ranks here, and there is 1")

    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(joining, "_joined", lambda: SimpleNamespace(node=SimpleNamespace(rank=1, size=2)))
    monkeypatch.setattr(machine, "cupy_on_gpu", no_gpu)
    for _ in range(2):
        with pytest.raises(ValueError, match="needs a GPU"):
            joining.transport_of("nccl")
    assert asked == [(1, 2)] * 2
