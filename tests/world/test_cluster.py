"""The stated hardware: what its numbers are, and that they are added up in whole picoseconds."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.world import CLASSROOM, DGX_A100, DGX_H100, Device, Link


def test_the_classroom_has_numbers_for_the_head():
    assert CLASSROOM.link(0, 7).picoseconds(10_000) == 1_000_000 + 1_000_000  # 1 µs and 10 KB at 10 GB/s
    assert CLASSROOM.link(7, 8).picoseconds(1_000) == 5_000_000 + 1_000_000  # 5 µs and 1 KB at 1 GB/s
    assert CLASSROOM.device.seconds(10**12, 0) == 1
    assert CLASSROOM.device.seconds(0, 10**11) == 1
    assert CLASSROOM.ports == 1


@pytest.mark.parametrize(("cluster", "flops"), [(DGX_A100, 312e12), (DGX_H100, 989e12)])
def test_ready_made_clusters_carry_their_source_and_published_numbers(cluster, flops):
    assert "peak" in cluster.source
    assert cluster.ports == "a level"
    assert cluster.ranks_per_node == 8
    assert cluster.device.flops == flops
    assert cluster.device.memory == 80e9
    assert cluster.intra.bandwidth > cluster.inter.bandwidth
    assert cluster.intra.latency < cluster.inter.latency


def test_a_cluster_that_reaches_half_of_its_peak_has_the_same_links_and_memory():
    slower = DGX_H100.reaching(0.5)
    assert slower.device == Device("H100 80GB, bf16", 494.5e12, 3.35e12, 80e9)
    assert (slower.intra, slower.inter, slower.ports) == (DGX_H100.intra, DGX_H100.inter, DGX_H100.ports)
    assert DGX_H100.reaching(1) == DGX_H100


@given(st.integers(0, 10**15), st.integers(1, 10**13), st.integers(0, 10**9))
def test_a_transfer_is_latency_plus_bytes_over_bandwidth_rounded_half_up_exactly(nbytes, bandwidth, latency):
    exact = Fraction(nbytes * 10**12, bandwidth)
    expected = latency + math.floor(exact + Fraction(1, 2))
    assert Link(latency * 1e-12, bandwidth).picoseconds(nbytes) == expected


def test_a_link_of_infinite_bandwidth_costs_its_latency_alone():
    assert Link(2e-6, math.inf).picoseconds(10**12) == 2_000_000
