"""A million tokens on a ring: the seconds are the formula's, never less than the work or one port's messages."""

import numpy as np
import pytest
from matplotlib.text import Text

from parlab import Cluster, views
from parlab.sequence import (
    AttentionShape,
    hidden_from,
    overlap_tokens,
    pair_flops,
    ring_cost,
    ring_time,
    unmasked_pairs,
)
from parlab.views.attention.ring_seconds import DOMAIN, KV_HEADS, LINKS, RANKS
from parlab.world import DGX_H100
from tests.views.drawn import artists, title

FLOPS = DGX_H100.device_of(0).flops


STOPS = {"NVLink": (8, 16, 32, 64), "InfiniBand": RANKS, "work": RANKS}  # no NVLink domain is larger than 72


def points(figure, name):
    """Where a line goes, from left to right: {ranks: seconds}. A ring's dots are the stops, and one place has none."""
    (drawn,) = artists(figure, name)
    along, seconds = np.asarray(drawn.get_xdata()), np.asarray(drawn.get_ydata())
    stops = STOPS[name.removeprefix("messages ")]
    if name in LINKS:
        assert drawn.get_marker() == "o"
        assert along[drawn.get_markevery()].tolist() == list(stops)
    assert (np.diff(along) > 0).all()
    assert set(stops) <= set(along)
    assert len(along) <= len(stops) + ("NVLink" in name) + (name in LINKS)
    assert along[-1] == (DOMAIN if "NVLink" in name else RANKS[-1])
    return dict(zip(along.tolist(), seconds.tolist(), strict=True))


def line(figure, name):
    """The seconds at the stops."""
    found = points(figure, name)
    return {P: found[P] for P in STOPS[name.removeprefix("messages ")]}


def test_64_ranks_take_10_95_s_over_infiniband_and_256_no_less():
    figure = views.ring_seconds()
    assert title(figure) == "64 ranks wait 36 % of the time over InfiniBand, 0 % over NVLink"
    rows = repr(figure).splitlines()
    assert "   64        16384      4.3    7.01 s      7.01 s, 1.00 ×     10.95 s, 1.56 ×" in rows
    assert "  256         4096      1.1    1.75 s                   –     11.04 s, 6.30 ×" in rows
    assert rows[-1] == "hidden from, tokens each: 2948 (NVLink), 25743 (InfiniBand)"


def test_with_4_kv_heads_256_ranks_take_1_75_s_over_infiniband():
    assert (
        title(views.ring_seconds(256, 4)) == "256 ranks wait 0 % of the time over InfiniBand; NVLink joins 72 in a rack"
    )


def test_backward_64_ranks_take_33_s_over_infiniband_and_need_30876_tokens():
    figure = views.ring_seconds(backward=True)
    assert title(figure) == "64 ranks wait 47 % of the time over InfiniBand, 0 % over NVLink"
    assert repr(figure).endswith("hidden from, tokens each: 3490 (NVLink), 30876 (InfiniBand)")


def test_at_the_published_561_tflops_backward_64_ranks_work_for_20_s_and_still_take_33():
    rows = repr(views.ring_seconds(kernel=561 / 989, backward=True)).splitlines()
    (row,) = [row.split() for row in rows if row.startswith("   64 ")]
    assert row[3:5] == ["20.07", "s"]
    assert row[-4:-2] == ["32.99", "s,"]
    assert rows[-1].endswith("26948 (InfiniBand)")


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("G", KV_HEADS)
def test_a_ring_takes_the_longer_of_its_work_and_its_messages_or_a_hop_more(G, backward):
    figure = views.ring_seconds(64, G, 0.65, backward)
    shape = AttentionShape(2**20, 32, G, 128, 2)
    for P in RANKS:
        # 100 ns: each hop and work is rounded to a picosecond
        work = 32 * pair_flops(unmasked_pairs(2**20, P, "zigzag")[0], 1, 32, 128, backward=backward) / (0.65 * FLOPS)
        assert line(figure, "work")[P] == pytest.approx(work, abs=1e-7)
        for name, link in LINKS.items():
            if P not in STOPS[name]:
                continue
            cost = ring_cost(shape, P, causal=True, layout="zigzag", backward=backward)
            messages = 32 * (cost.messages * link.latency + cost.nbytes / link.bandwidth)
            assert line(figure, f"messages {name}")[P] == pytest.approx(messages, abs=1e-7)
            longest, takes = max(work, messages), line(figure, name)[P]
            assert longest - 1e-7 <= takes <= longest * (1 + 2.6 / P)  # at most two hops or a tile more


def edge(figure, name):
    (upright,) = artists(figure, f"bound {name}")
    low, high = upright.get_xdata()
    assert low == high
    return low


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kernel", [0.4, 0.65, 1.0])
def test_left_of_the_upright_line_a_ring_waits_for_nothing_but_the_last_hop_home_and_right_of_it_it_waits(
    kernel, backward
):
    figure = views.ring_seconds(64, 32, kernel, backward)
    work = line(figure, "work")
    for name, link in LINKS.items():
        last = 32 * (link.latency + 2**20 / 2**6 * 2 * 32 * 128 * 4 / link.bandwidth) if backward else 0
        for P, takes in line(figure, name).items():
            home = last * 64 / P if backward else 0
            waits = name == "InfiniBand" and edge(figure, name) < P  # NVLink's ends before its bound
            assert (takes - home > work[P] * 1.001) == waits, (name, P)
    assert not artists(figure, "bound NVLink")


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kernel", [0.4, 0.65, 1.0])
@pytest.mark.parametrize("G", KV_HEADS)
def test_a_rings_line_bends_on_its_upright_line_where_it_takes_its_work_and_the_last_hop_home(G, kernel, backward):
    figure = views.ring_seconds(64, G, kernel, backward)
    for name, link in LINKS.items():
        found = points(figure, name)
        bends = [P for P in found if P not in (*RANKS, DOMAIN)]
        drawn = artists(figure, f"bound {name}")
        assert bends == ([edge(figure, name)] if drawn else [])
        assert not drawn or name == "InfiniBand"
        for P in bends:
            c = 2**20 / P  # tokens of a rank
            pairs = c * (c + 1) / 2 + (P - 1) * c**2 / 2
            work = 32 * (10 if backward else 4) * pairs * 32 * 128 / (kernel * FLOPS)
            home = 32 * (link.latency + c * 2 * G * 128 * 4 / link.bandwidth) if backward else 0  # float32
            assert found[P] == pytest.approx(work + home, rel=1e-9)


@pytest.mark.parametrize("backward", [False, True])
def test_the_place_of_the_bend_is_what_the_rings_formula_says_of_whole_ranks_beside_it(backward):
    """2²⁰ tokens divide into powers of two only: a text and a ring of nearly that size are timed, and scaled."""
    figure = views.ring_seconds(backward=backward)
    for name, link in LINKS.items():
        (at,) = [P for P in points(figure, name) if P not in RANKS]
        assert name == "InfiniBand" or at == DOMAIN
        P, c = round(at), 2 * round(2**20 / at / 2)
        cluster = Cluster.uniform(link.latency, link.bandwidth, flops=FLOPS).reaching(0.65)
        takes = 32 * ring_time(AttentionShape(P * c, 32, 32, 128, 2), P, cluster, backward=backward) / 1e12
        assert points(figure, name)[at] * (P * c / 2**20) ** 2 * at / P == pytest.approx(takes, rel=1e-3)


def test_a_learners_bound_draws_the_upright_lines_from_the_pictures_operations_bytes_and_speeds():
    given = []

    def mine(*four):
        given.append(four)
        return hidden_from(*four)

    figure = views.ring_seconds(bound=mine)
    # 4 · 32 heads of 128 operations a pair; K and V of 32 heads of 128 numbers of 2 bytes
    assert [four[:2] for four in given] == [(4 * 32 * 128, 2 * 32 * 128 * 2)] * 2
    assert {four[3] for four in given} == {450e9, 50e9}
    assert edge(figure, "InfiniBand") == pytest.approx(2**20 / 25_714, rel=1e-4)
    assert "your bound, without latency" in [text.get_text() for text in figure.findobj(Text)]


@pytest.mark.parametrize("G", KV_HEADS)
def test_the_librarys_bound_given_as_an_argument_counts_latency_and_stands_where_the_ring_bends(G):
    """Without latency it stood at 326 ranks with 4 K/V heads, and the curve bends at 305."""
    given, alone = views.ring_seconds(64, G, bound=hidden_from), views.ring_seconds(64, G)
    assert edge(given, "InfiniBand") == edge(alone, "InfiniBand") in points(given, "InfiniBand")
    assert "the bound" in [text.get_text() for text in given.findobj(Text)]


@pytest.mark.parametrize("link", ["NVLink", "InfiniBand"])
def test_the_messages_of_each_link_are_named_in_the_legend(link):
    assert f"messages, {link}" in [text.get_text() for text in views.ring_seconds().findobj(Text)]


def test_backward_64_ranks_take_22_s_if_dk_and_dv_travel_in_bf16():
    """Twice the bytes of each number over links of twice the bandwidth: every message takes as long."""
    link = LINKS["InfiniBand"]
    cluster = Cluster.uniform(link.latency, 2 * link.bandwidth, flops=FLOPS).reaching(0.65)
    shape = AttentionShape(2**20, 32, 32, 128, 4)
    assert 32 * ring_time(shape, 64, cluster, backward=True) / 1e12 == pytest.approx(22.06, abs=0.01)
    messages = 32 * ((63 + 64) * (link.latency + 2**20 / 64 * 2 * 32 * 128 * 2 / link.bandwidth))
    assert messages == pytest.approx(22, abs=0.25)


@pytest.mark.parametrize("G", KV_HEADS)
def test_an_upright_line_that_lies_outside_is_left_out(G):
    figure = views.ring_seconds(64, G)
    drawn = [name for name in LINKS if artists(figure, f"bound {name}")]
    assert drawn == ["InfiniBand"]


@pytest.mark.parametrize("backward", [False, True])
def test_nvlinks_line_ends_at_72_ranks_which_wait_for_nothing_with_any_kernel(backward):
    for kernel in (0.4, 1.0):
        bound = overlap_tokens(
            kernel * FLOPS,
            450e9,
            2,
            half_masked=True,
            backward=backward,
            latency=LINKS["NVLink"].latency,
            width=32 * 128,
        )
        assert 2 * bound < 2**20 / 72
    assert "128" in title(views.ring_seconds(128)).split()
    assert not artists(views.ring_seconds(128), "here NVLink")
    (end,) = artists(views.ring_seconds(128), "domain")
    assert list(end.get_xdata()) == [72]


@pytest.mark.parametrize("tokens", [0, -3, float("nan")])
def test_a_bound_that_finds_no_tokens_is_refused(tokens):
    with pytest.raises(ValueError, match=r"^bound\(flops, nbytes, F, W\)="):
        views.ring_seconds(bound=lambda *four: tokens)
    with pytest.raises(ValueError, match=r"^bound=3: must be a function"):
        views.explore_ring_seconds(bound=3)


def test_a_slower_kernel_hides_more():
    for kernel in (0.4, 1.0):
        bounds = {
            name: overlap_tokens(
                kernel * FLOPS, link.bandwidth, 2, half_masked=True, latency=link.latency, width=32 * 128
            )
            for name, link in LINKS.items()
        }
        said = ", ".join(f"{bound:.0f} ({name})" for name, bound in bounds.items())
        assert repr(views.ring_seconds(kernel=kernel)).endswith(f"hidden from, tokens each: {said}")
    assert bounds["InfiniBand"] == pytest.approx(39_590, abs=1)  # at the peak: 989 TFLOP/s over 50 GB/s, twice


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"ranks": 48}, "ranks=48: use one of 8, 16, 32"),
        ({"ranks": 64.5}, "ranks=64.5"),
        ({"kv_heads": 2}, "kv_heads=2: use one of 32, 8, 4, 1"),
        ({"kernel": 1.5}, "kernel=1.5: must be at most 1"),
        ({"backward": "yes"}, "backward='yes': must be True or False"),
    ],
)
def test_other_rings_are_refused_by_name(given, text):
    with pytest.raises(ValueError, match=text):
        views.ring_seconds(**given)
