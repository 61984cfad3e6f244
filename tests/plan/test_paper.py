"""The closed forms on paper against the planner, where nothing is uneven."""

from __future__ import annotations

import pytest

from parlab.labs import EXERCISES
from parlab.nn import LlamaConfig
from parlab.pipeline import Costs, looped_bfs, simulate
from parlab.plan import Layout, estimate, memory_on_paper, seconds_on_paper
from parlab.tensor import llama_kept_by_place
from parlab.world import Cluster

CONFIG = LlamaConfig(4, 64, 192, 16, 4)  # 4 words: nearly no head


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(("d", "p", "t", "m"), [(2, 2, 2, 2), (4, 4, 1, 8), (2, 8, 2, 8)])
def test_memory_on_paper_is_the_planners_but_for_buffers_ends_and_norms(d, p, t, m, zero):
    """Within 10 %: of a model whose head is a hundredth of its layers."""
    S = 1024
    kept = 16 * sum(llama_kept_by_place(CONFIG, 1, S, t, 2, sequence_parallel=True).values()) * t
    layout = Layout(dp=d, pp=p, tp=t, zero=zero, sequence_parallel=True)
    found = estimate(CONFIG, Cluster.uniform(0, 1e9), layout, batch=d * m, sequence=S).bytes
    expected = memory_on_paper(CONFIG.num_parameters, kept, d, p, t, m, zero)
    assert expected == pytest.approx(sum(found.values()) - found["working"], rel=0.1)


def test_seconds_on_paper_are_work_and_turns_once_a_microbatch_and_p_minus_1_over_v_more():
    """On links without latency; the turns of 64 layers are many beside those of both ends."""
    S, d, p, t, v, batch, pace, flops = 256, 2, 4, 2, 2, 16, 1e9, 1e12
    cluster = Cluster.uniform(0, pace, flops=flops)
    layout = Layout(dp=d, pp=p, tp=t, chunks=v, zero=0)
    config = LlamaConfig(2, 64, 192, 64, 4)
    found = estimate(config, cluster, layout, batch=batch, sequence=S).seconds
    one = estimate(config, cluster, Layout(zero=0), batch=1, sequence=S).seconds
    nbytes = 64 * 8 * 2 * S * 64
    expected = seconds_on_paper(one["products"] + one["attention"], nbytes, pace, d, p, t, v, batch)
    took = sum(found[kind] for kind in ("products", "attention", "tp", "bubble", "imbalance"))
    assert expected == pytest.approx(took, rel=0.02)


@pytest.mark.parametrize("m", [1, 3, 8, 13])
@pytest.mark.parametrize(("p", "v"), [(8, 1), (8, 2), (4, 5)])
def test_seconds_on_paper_are_those_of_the_schedule_also_where_microbatches_are_fewer_than_stages(p, v, m):
    """Breadth-first, because interleaved 1F1B needs whole groups of p microbatches."""
    chunk = 3.0 / p / v
    ran = simulate(looped_bfs(p, m, v), Costs(chunk / 3, chunk / 3, chunk / 3))
    assert seconds_on_paper(3.0, 0, 1, 1, p, 1, v, m) == pytest.approx(ran.makespan)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("08.memory", memory_on_paper),
        ("08.step_time", seconds_on_paper),
    ],
)
def test_the_librarys_functions_pass_the_exercises_that_they_stand_in_for(name, answer):
    assert EXERCISES[name].review(lambda *given: answer(*given)).status == "passed"
