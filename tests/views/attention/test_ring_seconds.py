"""A million tokens on a ring: the seconds are the formula's, never less than the work or one port's messages."""

import pytest

from parlab import views
from parlab.sequence import AttentionShape, overlap_tokens, pair_flops, ring_cost, unmasked_pairs
from parlab.views.attention.ring_seconds import KV_HEADS, LINKS, RANKS
from parlab.world import DGX_H100
from tests.views.drawn import artists, title

FLOPS = DGX_H100.device_of(0).flops


def line(figure, name):
    (drawn,) = artists(figure, name)
    assert list(drawn.get_xdata()) == list(RANKS)
    return dict(zip(RANKS, drawn.get_ydata(), strict=True))


def test_64_ranks_take_10_95_s_over_infiniband_and_256_no_less():
    figure = views.ring_seconds()
    assert title(figure) == "64 ranks wait 0 % of the time over NVLink, 36 % over InfiniBand"
    rows = repr(figure).splitlines()
    assert "   64        16384      4.3    7.01 s      7.01 s, 1.00 ×     10.95 s, 1.56 ×" in rows
    assert "  256         4096      1.1    1.75 s      1.75 s, 1.00 ×     11.04 s, 6.30 ×" in rows
    assert rows[-1] == "hidden from, tokens each: 2948 (NVLink), 25743 (InfiniBand)"


def test_with_4_kv_heads_256_ranks_take_1_75_s_over_infiniband():
    assert title(views.ring_seconds(256, 4)) == "256 ranks wait 0 % of the time over NVLink, 0 % over InfiniBand"


def test_backward_64_ranks_take_33_s_over_infiniband_and_need_30876_tokens():
    figure = views.ring_seconds(backward=True)
    assert title(figure) == "64 ranks wait 0 % of the time over NVLink, 47 % over InfiniBand"
    assert repr(figure).endswith("hidden from, tokens each: 3490 (NVLink), 30876 (InfiniBand)")


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
            cost = ring_cost(shape, P, causal=True, layout="zigzag", backward=backward)
            messages = 32 * (cost.messages * link.latency + cost.nbytes / link.bandwidth)
            assert line(figure, f"messages {name}")[P] == pytest.approx(messages, abs=1e-7)
            longest, takes = max(work, messages), line(figure, name)[P]
            assert longest - 1e-7 <= takes <= longest * (1 + 2.6 / P)  # at most two hops or a tile more


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
