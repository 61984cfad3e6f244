"""Which group for which link: bills are the times by formula, and the estimates find the published order."""

import pytest

from parlab import views
from parlab.sequence import AttentionShape, method_times, ring_cost, step_time, ulysses_cost
from parlab.views.sequence import link_bill as links
from parlab.views.sequence.link_bill import GROUPS, LINKS, NODES, NVLINK, PARTS, PCIE, PUBLISHED_ON_L20S, STEPS, TOKENS
from parlab.world import DGX_A100, DGX_H100
from tests.views.drawn import artists, boxes, check_controls, check_refused, check_text, title

THEIRS = AttentionShape(S=131072, H=32, G=32, D=32, itemsize=2, B=2)
A100, L20 = views.PUBLISHED_RATES.values()


def bill(*given):
    """The milliseconds of each part that are drawn, by the name of the way."""
    figure = views.link_bill(*given)
    names = [line[:13].strip() for line in repr(figure).splitlines()[1:]]
    found = {part: [right - left for left, right, _, _ in boxes(figure, part)] for part in PARTS}
    return {name: {part: found[part][row] for part in PARTS} for row, name in enumerate(names)}


def total(*given):
    return {name: sum(parts.values()) for name, parts in bill(*given).items()}


def fastest(*given):
    return min(found := total(*given), key=found.get)


def test_the_published_ring_loses_on_nvlink_12_4_to_15_8_and_wins_on_pcie_7_4_to_3_9():
    assert [round(rates[group], 1) for rates in (A100, L20) for group in (1, 8)] == [12.4, 15.8, 7.4, 3.9]
    assert [max(rates, key=rates.get) for rates in (A100, L20)] == [8, 2]


def test_ulysses_sends_a_quarter_of_the_rings_bytes_on_both_machines():
    sent = ulysses_cost(THEIRS, 8).nbytes
    assert sent / ring_cost(THEIRS, 8).nbytes == pytest.approx(0.25, abs=0.005)  # and the log-sum-exp
    assert sent / DGX_A100.intra.bandwidth == pytest.approx(0.8e-3, abs=0.05e-3)


def test_on_nvlink_the_rings_7_steps_cost_18_ms_15_times_the_least_and_on_pcie_ulysses_waits_118_at_2_gb_a_second():
    longer = 1000 / A100[1] - 1000 / A100[8]
    steps = longer + 1000 * ulysses_cost(THEIRS, 8).nbytes / DGX_A100.intra.bandwidth
    assert (longer, steps) == (pytest.approx(17.2, abs=0.05), pytest.approx(18.0, abs=0.05))
    assert steps / 7 / (step_time(THEIRS, 8, DGX_A100) / 1e9) == pytest.approx(15, abs=0.5)
    waits = 1000 / L20[8] - 1000 / L20[1]
    assert (waits, ulysses_cost(THEIRS, 8).nbytes / waits / 1e6) == (
        pytest.approx(118, abs=0.5),
        pytest.approx(2.0, abs=0.05),
    )


def test_the_steps_that_go_save_3_7_then_0_95_then_0_5_ms_each():
    saved = [(1000 / A100[u] - 1000 / A100[2 * u]) / (8 // u - 4 // u) for u in (1, 2, 4)]
    assert saved == [pytest.approx(3.69, abs=0.005), pytest.approx(0.95, abs=0.005), pytest.approx(0.52, abs=0.005)]


@pytest.mark.parametrize("tokens", PUBLISHED_ON_L20S)
def test_the_estimates_for_pcie_find_the_published_order_at_each_length_and_the_times_within_25_percent(tokens):
    computed = list(total(PCIE, tokens).values())[: len(GROUPS)]
    published = [1000 / PUBLISHED_ON_L20S[tokens][group] for group in GROUPS]
    assert sorted(GROUPS, key=lambda u: computed[GROUPS.index(u)]) == sorted(
        GROUPS, key=lambda u: published[GROUPS.index(u)]
    )
    assert computed == pytest.approx(published, rel=0.04 if tokens == 131072 else 0.25)


@pytest.mark.parametrize("tokens", TOKENS)
def test_at_three_times_the_least_groups_of_8_win_on_nvlink_of_2_on_pcie_and_of_a_node_in_two_nodes(tokens):
    assert [fastest(link, tokens, 3) for link in (NVLINK, PCIE, NODES)] == ["Ulysses", "USP 2", "USP 8"]


@pytest.mark.parametrize(
    ("step", "nvlink", "pcie", "nodes"),
    [
        (1, ["USP 4"] + 3 * ["Ulysses"], 2 * ["USP 2"] + 2 * ["ring"], 4 * ["USP 8"]),
        (10, 4 * ["Ulysses"], 4 * ["USP 2"], ["Ulysses"] + 3 * ["USP 8"]),
        (25, 4 * ["Ulysses"], 4 * ["all-gather"], ["Ulysses"] + 3 * ["all-gather"]),
    ],
)
def test_at_other_costs_of_a_step_these_ways_win(step, nvlink, pcie, nodes):
    for link, expected in ((NVLINK, nvlink), (PCIE, pcie), (NODES, nodes)):
        assert [fastest(link, tokens, step) for tokens in TOKENS] == expected


def test_with_2_kv_heads_all_gather_wins_everywhere_and_with_4_on_nvlink(monkeypatch):
    monkeypatch.setattr(links, "G", 2)
    assert {fastest(link, tokens, 3) for link in LINKS for tokens in TOKENS} == {"all-gather"}
    found = total(NODES, 131072, 3)
    assert (found["all-gather"], found["USP 8"]) == (pytest.approx(14.15, abs=0.01), pytest.approx(14.38, abs=0.01))
    monkeypatch.setattr(links, "G", 4)
    assert {fastest(NVLINK, tokens, 3) for tokens in TOKENS} == {"all-gather"}
    assert [fastest(NODES, tokens, 3) for tokens in TOKENS] == ["all-gather", "USP 8", "USP 8", "USP 8"]


def test_with_32_kv_heads_the_ring_through_two_nodes_takes_41_6_ms():
    shape = AttentionShape(131072, 32, 32, 128, 2)
    assert method_times(shape, 16, DGX_H100, 0.65, step=3)["ring"].picoseconds / 1e9 == pytest.approx(41.6, abs=0.05)


def test_in_two_nodes_the_ring_waits_for_nothing_and_its_15_further_steps_cost_4_9_ms():
    found = bill(NODES, 131072, 3)
    assert found["ring"]["messages"] == pytest.approx(0, abs=0.01)
    assert found["ring"]["calls"] == pytest.approx(4.87, abs=0.005)
    assert found["ring"]["work"] == pytest.approx(13.7, abs=0.05)
    waits = [found[name]["messages"] for name in ("USP 8", "Ulysses", "all-gather")]
    assert waits == [pytest.approx(wait, abs=0.05) for wait in (0.4, 2.1, 1.8)]


@pytest.mark.parametrize("step", STEPS)
def test_in_two_nodes_the_bills_are_the_times_by_formula(step):
    shape = AttentionShape(32768, 32, 8, 128, 2)
    times = method_times(shape, 16, DGX_H100, 0.65, step=step)
    found = total(NODES, 32768, step)
    for name in ("ring", "double ring", "Ulysses", "all-gather"):
        assert found[name] == pytest.approx(times[name].picoseconds / 1e9, rel=1e-9)
    assert found[f"USP {times['USP'].ulysses}"] == pytest.approx(times["USP"].picoseconds / 1e9, rel=1e-9)


def test_with_slower_tiles_usp_takes_16_9_ms_and_all_gather_in_one_call_15_5():
    """Tiles at 55 % of the peak, one call at 65 %."""
    shape = AttentionShape(131072, 32, 8, 128, 2)
    slow, fast = (method_times(shape, 16, DGX_H100, kernel, step=3) for kernel in (0.55, 0.65))
    assert (slow["USP"].picoseconds / 1e9, slow["USP"].ulysses) == (pytest.approx(16.9, abs=0.05), 8)
    assert fast["all-gather"].picoseconds / 1e9 == pytest.approx(15.5, abs=0.05)


def test_the_published_ring_of_this_shape_pays_3_times_the_least_for_a_step():
    """8 H800s, 8192 tokens on each, 32 and 8 heads of 128, forwards a second: 63.0, and 73.9 of one GPU alone."""
    shape = AttentionShape(65536, 32, 8, 128, 2)
    step = (1 / 63.0 - 1 / 73.9) / 7
    assert step / (step_time(shape, 8, DGX_H100) / 1e12) == pytest.approx(3.1, abs=0.1)


def test_the_darker_bar_is_the_fastest_and_a_diamond_stands_where_pcie_was_published():
    figure = views.published_groups()
    assert title(figure) == "Fastest on 8 A100s, joined by NVLink: Ulysses; on 8 L20s, joined by PCIe: USP 2"
    assert [right for _, right, _, _ in boxes(figure, "rates 1")] == list(L20.values())
    drawn = artists(views.link_bill(PCIE), "published")
    assert [line.get_xdata()[0] for line in drawn] == [1000 / rate for rate in PUBLISHED_ON_L20S[131072].values()]
    assert artists(views.link_bill(NODES), "published") == artists(views.link_bill(PCIE, 524288), "published") == []


@pytest.mark.parametrize("link", LINKS)
def test_all_text_is_readable(link):
    for tokens in TOKENS:
        check_text(views.link_bill(link, tokens))
    check_text(views.published_groups())
    check_text(views.published_groups((1, 8), headline="The same program on two machines"))


def test_every_value_of_every_control_changes_the_picture():
    check_controls(views.explore_links())


@pytest.mark.parametrize(
    ("draw", "said", "right"),
    [
        (lambda: views.link_bill("SXM"), "link='SXM'", "use one of NVLink: 8 H100s"),
        (lambda: views.link_bill(tokens=1000), "tokens=1000", "use one of 8192"),
        (lambda: views.link_bill(step=-1), "step=-1", "must be"),
        (lambda: views.published_groups((3,)), "groups=3", "use one of 1, 2, 4, 8"),
    ],
)
def test_what_is_no_link_length_cost_or_group_is_refused(draw, said, right):
    check_refused(draw, said, right)
