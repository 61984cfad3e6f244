"""The planner of mixtures: its bytes are those that runs send, keep and hold, where every expert has an even load."""

from __future__ import annotations

import numpy as np
import pytest

from parlab import run
from parlab.experts import ExpertParallel
from parlab.nn.mixtral import MixtralConfig
from parlab.nn.optimizer import AdamW
from parlab.nn.parameters import layer_parameters
from parlab.nn.published_mixtures import MIXTRALS, MIXTURES
from parlab.pipeline import one_f_one_b
from parlab.plan import LLAMA_8B, Layout, estimate, search
from parlab.plan.case import Case
from parlab.plan.experts import kept_of_experts
from parlab.plan.machine import Machine
from parlab.plan.memory import kept_of_layer
from parlab.train import Mesh, Trainer, bytes_by_strategy
from parlab.world import CLASSROOM, DGX_H100
from parlab.zero import MIXED, StateBytes
from tests.train.models import EXPERTS, batches, model

B, S, NUMBER = 8, 8, 8
ALL = EXPERTS | {"num_experts_per_tok": 4}  # of 4 experts: an even load, whatever the router says
FLOAT64 = {"state": StateBytes(8, 8, 16), "itemsize": 8}
MESHES = {
    "dp, ep": ({"dp": 4}, 2, {}),
    "ep over all": ({"dp": 2, "cp": 2}, 4, {}),
    "ep 1": ({"dp": 4}, 1, {"zero": 2}),
    "pp": ({"dp": 2, "pp": 2}, 2, {}),
    "tp": ({"dp": 2, "tp": 2}, 2, {}),
    "sequence parallel": ({"dp": 2, "tp": 2}, 2, {"sequence_parallel": True, "zero": 3}),
    "recomputed": ({"dp": 4}, 2, {"recompute": "full", "zero": 3}),
}


@pytest.mark.parametrize("name", MESHES)
def test_bytes_of_a_step_of_a_mixtral_are_those_that_are_counted(name):
    axes, ep, knobs = MESHES[name]
    pp, m = axes.get("pp", 1), axes.get("pp", 1)
    options = {"zero": 1, **knobs}
    if options["zero"] == 2:
        options["reduce"] = "each"

    def program(comm):
        trainer = Trainer(Mesh(comm, **axes, ep=ep), model(**ALL), AdamW(), schedule=one_f_one_b(pp, m), **options)
        trainer.step(*batches(B, S)[0])

    ranks = int(np.prod(list(axes.values())))
    counted = bytes_by_strategy(run(program, ranks).timeline)
    data, rest = axes.get("dp", 1) * axes.get("cp", 1), pp * axes.get("tp", 1)
    counted["dp"] -= (data - 1) * rest * 2 * NUMBER  # the loss, in a ring
    counted["pp"] -= ranks // pp * (pp - 1) * 2 * NUMBER
    layout = Layout(**axes, ep=ep, microbatch=B // (axes.get("dp", 1) * m), **{"zero": 1, **knobs})
    found = estimate(model(**ALL).config, CLASSROOM, layout, batch=B, sequence=S, **FLOAT64).sent
    assert found == pytest.approx({name: counted.get(name, 0) for name in found}, rel=1e-12)


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_the_kept_bytes_of_the_experts_are_those_of_the_layers_cache(ep):
    mixtral = model(**ALL)

    def program(comm):
        prefix = "model.layers.0.block_sparse_moe"
        layer = ExpertParallel.from_full(comm, mixtral.weights, prefix, 4, 4)
        x = np.random.default_rng(comm.rank).normal(size=(2, S, mixtral.config.hidden_size))
        cache = layer.forward(x)[1]
        routing, sent = cache.router.routing, cache.mix
        held = sum(x.nbytes for of_expert in sent.experts for x in of_expert)  # x, gate, up, hidden
        held += sent.combine.slots.nbytes + sent.plan.pairs.order.nbytes
        return held + routing.affinities.nbytes + routing.chosen.nbytes + routing.gates.nbytes

    case = Case(mixtral.config, Layout(dp=ep, ep=ep, microbatch=2), 2 * ep, S, MIXED, 8)
    assert run(program, ep).results == [kept_of_experts(case).item()] * ep
    assert kept_of_layer(case, np.array("full")).item() == 2 * S * mixtral.config.hidden_size * 8


MIXTRAL = MIXTRALS["mixtral-8x7b"]


@pytest.mark.parametrize(("ep", "tp"), [(1, 1), (8, 1), (4, 2)])
def test_state_bytes_of_mixtral_8x7b_are_those_of_the_closed_form_beside_the_embeddings(ep, tp):
    layout = Layout(dp=8, pp=4, tp=tp, ep=ep, zero=1)
    found = estimate(MIXTRAL, DGX_H100, layout, batch=64, sequence=4096).bytes
    case = Case(MIXTRAL, layout, 64, 4096)
    number, layers, params = case.stages.ranks[1]  # in the middle
    assert (int(number), int(layers)) == (1, 8)
    layer, experts = layer_parameters(MIXTURES["mixtral-8x7b"]), 8 * case.stages.layer_expert_params
    assert experts == 8 * layer.experts // ep * layer.expert
    if tp == 1:
        assert params == 8 * (layer.attention + layer.beside_experts)
    of_ranks = [(rank.params, rank.layers * case.stages.layer_expert_params) for rank in case.stages.ranks]
    assert found["weights"] in [2 * (params + experts) for params, experts in of_ranks]
    assert found["optimizer"] in [12 * (params / 8 + experts * ep / 8) for params, experts in of_ranks]


@pytest.mark.parametrize(("ep", "tp", "near"), [(2, 1, 2), (8, 1, 8), (32, 1, 8), (16, 2, 4)])
def test_an_exchange_takes_the_longer_of_its_way_between_nodes_and_inside(ep, tp, near):
    layout = Layout(dp=64 // tp, tp=tp, ep=ep, microbatch=1)
    config = MixtralConfig.from_dict(MIXTRAL.to_dict() | {"num_local_experts": 32})
    found = estimate(config, DGX_H100, layout, batch=64 // tp, sequence=4096).seconds["ep"]
    machine = Machine(DGX_H100)
    rows = 4096 * 4096 * 2  # bytes of a copy of each of 4096 tokens of 4096 elements
    inside = 2 * (near - 1) / ep * rows / machine.intra_pace
    between = 2 * (1 - near / ep) * rows / machine.inter_pace
    assert found == pytest.approx(32 * 4 * (max(inside, between) + machine.hardware.collective))


@pytest.mark.parametrize(("cut", "own"), [(False, 4096), (True, 2048)])
def test_router_and_experts_multiply_a_ranks_own_tokens_half_of_4096_with_sequence_parallelism(cut, own):
    """Attention and the head run on all tokens of the region, each rank with half of the columns."""
    E, V, M, N = 4096, 32000, 14336, 8
    attention, head, of_token = (2 * E * E + 2 * E * 1024) / 2, V * E / 2, N * E + 2 * 3 * E * M
    layout = Layout(tp=2, sequence_parallel=cut)
    found = estimate(MIXTRAL, CLASSROOM, layout, batch=1, sequence=4096).seconds["products"]
    params = 4096 * (32 * attention + head) + own * 32 * of_token  # times the rows that each multiplies
    assert found == pytest.approx(3 * 2 * params / 1e12, rel=1e-12)


def test_more_ep_holds_less_and_sends_rows_and_the_search_weighs_both():
    asked = {"batch": 64, "sequence": 4096}
    one, eight = (estimate(MIXTRAL, DGX_H100, Layout(dp=64, ep=ep, zero=1), **asked) for ep in (1, 8))
    assert eight.bytes["weights"] < one.bytes["weights"] / 5
    assert one.seconds["ep"] == 0 < eight.seconds["ep"]
    assert eight.seconds["dp"] < one.seconds["dp"]
    plans = search(MIXTRAL, DGX_H100, 64, **asked, cp=1, schedule="1f1b", recompute="none", microbatch=[1, 2])
    assert plans.best.total_bytes <= plans.memory
    assert set(np.unique(plans.layouts.ep)) == {1, 2, 4, 8}
    assert ", ep " in str(max(plans, key=lambda found: found.layout.ep).layout)
    assert pytest.approx(plans.best.flops, rel=0.05) == 6 * MIXTRAL_ACTIVE * 64 * 4096


MIXTRAL_ACTIVE = 12_879_925_248 - 32000 * 4096  # without the table, which is looked up


def test_a_dense_model_has_no_seconds_of_ep():
    assert "ep" not in estimate(LLAMA_8B, DGX_H100, Layout(dp=4), batch=64, sequence=4096).seconds


def test_the_command_plans_a_mixtral_by_its_short_name(capsys):
    from parlab.cli import main

    assert main(["plan", "--model", "8x7b", "--gpus", "64", "--batch", "256", "--sequence", "4096", "--top", "1"]) == 0
    assert "\n  ep 2 " in capsys.readouterr().out  # a neighbour


def test_the_ranks_of_ep_lie_a_pipeline_apart_so_mixtral_8x7bs_rows_all_leave_the_node():
    """dp 8, pp 8, ep 8 on nodes of 8: by Llama 3's order a rank of ep has each of the others on another node."""
    found = estimate(MIXTRAL, DGX_H100, Layout(dp=8, pp=8, ep=8), batch=64, sequence=4096)
    sent = 4096 * 2 * 4096 * 2  # bytes of a dispatch: two experts of each of 4096 tokens of 4096 elements
    machine = Machine(DGX_H100)
    exchange = sent * 7 / 8 / machine.inter_pace + machine.hardware.collective
    exchanges = 32 / 8 * 8 * 4  # layers of a rank, microbatches, and two forward and two backward
    assert found.seconds["ep"] == pytest.approx(exchanges * exchange)
