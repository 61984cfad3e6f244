"""A cluster that is measured: the α and the β that a world with a known clock has."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

from parlab.world import Cluster, fit, fit_cluster, run


@pytest.mark.parametrize("engine", ["threads", pytest.param("mpi", marks=pytest.mark.slow)])
def test_a_fitted_cluster_of_2_ranks_times_a_run(engine):
    cluster = fit_cluster(engine, 2)
    assert isinstance(cluster, Cluster)
    assert cluster.name == f"{engine}, measured"
    assert cluster.inter.bandwidth > 1
    assert cluster.device.flops > 0
    assert run(lambda comm: comm.barrier(), 2, cluster=cluster).timeline.makespan >= 0


@pytest.mark.parametrize(("latency", "bandwidth"), [(1e-5, 1e9), (2e-4, 1e8), (0.0, 1e10)])
def test_alpha_and_beta_of_a_world_with_a_known_clock_come_back_to_9_digits(monkeypatch, latency, bandwidth):
    now = [0.0]

    def sendrecv(x, dst, src):
        now[0] += latency + x.nbytes / bandwidth

    comm = SimpleNamespace(sendrecv=sendrecv, barrier=lambda: None, left=0, right=0)
    monkeypatch.setattr(fit.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(fit, "_work", lambda comm, xp, n: (1e9, 1e9))
    monkeypatch.setattr(fit, "run", lambda shifts, size, sizes, engine: SimpleNamespace(results=[shifts(comm, sizes)]))
    cluster = fit_cluster("threads", 2)
    assert cluster.source == "ring shifts of up to 1048576 bytes"
    link = cluster.inter
    assert link.latency == pytest.approx(latency, rel=1e-9, abs=1e-14)
    assert link.bandwidth == pytest.approx(bandwidth, rel=1e-9)
    assert time.perf_counter() == now[0]


def test_of_noisy_and_unequal_ranks_the_slowest_counts_at_every_size_and_each_size_by_its_relative_error(monkeypatch):
    sizes = fit.SIZES
    times = [[9e-6, 2.3e-5, 4.0e-5, 7.0e-5], [1.1e-5, 2.0e-5, 4.4e-5, 6.5e-5], [8e-6, 2.6e-5, 3.0e-5, 7.5e-5]]
    work = [(3e9, 5e9), (2e9, 9e9), (4e9, 1e9)]
    results = [(of_rank, *of_work) for of_rank, of_work in zip(times, work, strict=True)]
    monkeypatch.setattr(fit, "run", lambda shifts, size, sizes, engine: SimpleNamespace(results=results))
    cluster = fit_cluster("threads", 3)
    slowest = np.array([1.1e-5, 2.6e-5, 4.4e-5, 7.5e-5])
    rows = np.stack([np.ones(4), np.array(sizes)], axis=1) / slowest[:, None]  # (α + nβ) / t = 1, by least squares
    alpha, beta = np.linalg.solve(rows.T @ rows, rows.T @ np.ones(4))
    assert cluster.inter.latency == pytest.approx(alpha, rel=1e-9)
    assert 1 / cluster.inter.bandwidth == pytest.approx(beta, rel=1e-9)
    assert (cluster.device.flops, cluster.device.memory_bandwidth) == (2e9, 1e9)
