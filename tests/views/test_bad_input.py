"""What is refused: the message says what was given, and what would be right. One row for each rule.

A rule that many figures share, such as that of whole numbers, has one row, and not one for each argument.
"""

from dataclasses import replace

import numpy as np
import pytest

from parlab import Cluster, labs, per_rank, run, views
from parlab.labs import on_rank_0, three_arguments
from parlab.pipeline import (
    Action,
    Costs,
    KeptBytes,
    Schedule,
    gpipe,
    one_f_one_b,
    simulate,
    zb_h1,
)
from parlab.plan import LLAMA_8B, Validation, search
from parlab.sequence import double_ring_attention, ring_attention, shard
from parlab.views.tensor.mlp_film import STEPS
from parlab.world import DGX_H100
from tests.views.drawn import check_refused, nothing, ring
from tests.views.sequence.ring_runs import learners_ring
from tests.views.zero.zero_runs import step

NAN = float("nan")
DONE = run(ring, 4, np.ones(64))
LINK = Cluster.uniform(0, 1e9)
WORK = run(lambda comm: comm.compute("0F0", seconds=1e-6), 2)
ONE = np.arange(6.0).reshape(1, 2, 3)
LOSS = [4.0, 2.0, 1.0]
RIGHT = {"norm": [0.01, 0.001]}
KEPT = KeptBytes(activation=[10, 10, 12], pending=[14, 14, 16])
PLAN = search(LLAMA_8B, DGX_H100, 16, batch=64, sequence=8192).best
WIDE = one_f_one_b(2, 2), zb_h1(2, 2)


def collective(name, size):
    return run(lambda comm, x: getattr(comm, name)(x), size, np.ones(8))


def own_ring(size=4, **how):
    return run(learners_ring, size, np.zeros(4), **how)


def attention(method, size=4, **how):
    x = [per_rank(shard(np.zeros((1, 4, 64, 16), np.float32), size))] * 3
    return run(method, size, *x, cluster=replace(LINK, ranks_per_node=2), **how)


def greets(comm, q, k, v):
    comm.sendrecv(q, comm.right, comm.left)
    return ring_attention(comm, q, k, v)


def double_ring(size=4, ranks_per_node=2):
    x = per_rank(shard(np.zeros((1, 1, 4 * size, 2)), size, "zigzag"))
    how = {"causal": True, "layout": "zigzag", "ranks_per_node": ranks_per_node}
    return run(double_ring_attention, size, x, x, x, cluster=replace(LINK, ranks_per_node=ranks_per_node), **how)


def computes(*names, sends=False):
    def program(comm):
        for name in names:
            with comm.compute(name, flops=1):
                pass
        if sends:
            comm.sendrecv(np.ones(1), comm.right, comm.left)

    return run(program, 2)


def exchanges(times, size=2):
    def program(comm):
        comm.compute("work", seconds=1e-6)
        for _ in range(times):
            comm.sendrecv(np.ones(8), comm.right, comm.left)

    return run(program, size)


def zigzag(*tile):
    return views.ring_masks(16, 2, "zigzag", rule=lambda *three: tile)


def steps_of(schedules, steps="one step"):
    return views.step_frontier(schedules, Costs(), three_arguments, on_rank_0, steps)


REFUSED = [  # rules that many figures share
    (lambda: views.timeline([1, 2]), "run=[1, 2]", "what run() or simulate() returned"),
    (lambda: views.lanes_of(DONE, 4), "rank=4", "0 to 3"),
    (lambda: views.tensor(S="no"), "S='no': must be a whole number, at least 1"),
    (lambda: views.tensor(S=10**19), "S=10000000000000000000: must be at most 2147483648"),
    (lambda: views.ring_masks(2048, 4), "S=2048", "1 to 1024"),
    (lambda: views.ring_masks(causal=[]), "causal=[]: must be True or False"),
    (lambda: views.ring_masks(32, 4, "spiral"), "layout='spiral'", "contiguous, zigzag, striped"),
    (lambda: views.packed_ring(8), "documents=8: a list of whole numbers is needed"),
    (lambda: views.packed_ring([0, 2.5]), "documents[1]=2.5: must be a whole number"),
    (lambda: views.wrong_gradients({}, {}), "found={}: must have one value or more, by name"),
    (lambda: views.group_times(48), "gpus=48", "use one of 32, 64, 128, 256"),
    (lambda: views.group_times(step=-1), "step=-1", "at least 0"),
    (lambda: views.compare_timelines({}), "runs={}", "at least one"),
    (lambda: views.compare_timelines([3]), "runs=[3]", "{name: run}"),
    (lambda: views.compare_timelines({"one": 3}), "runs['one']=3", "what run() or simulate() returned"),
    (lambda: views.compare_timelines({"a": DONE, "b": simulate(gpipe(2, 2))}), "one clock needs one unit"),
    (lambda: views.timeline(DONE, headline=3), "headline=3", "text"),
    # predict
    (lambda: views.predict("", 3), "question=''", "a text"),
    (lambda: views.predict("How many?", NAN), "truth=nan", "a finite number"),
    (lambda: views.predict("How many?", lambda: None).answer(), "truth=None", "a finite number"),
    (lambda: views.predict("How many?", 3, then=4), "then=4", "a function without arguments"),
    (lambda: views.predict("How many?", 3, usual=4), "usual=4", "the reasoning that leads there"),
    (lambda: views.predict("How many?", 3, usual=(4, " ")), "usual[1]=' '", "a text"),
    # the world
    *((lambda ranks=ranks: views.timeline(DONE, ranks=ranks), f"ranks={ranks!r}", "0 to 3")
      for ranks in ([], [4], "all", True)),
    (lambda: views.timeline(DONE, ranks=[1, 1]), "ranks=[1, 1]", "once"),
    (lambda: views.deadlock(DONE), "error=Run", "DeadlockError"),
    (lambda: views.stall_waits(run(nothing, 2)), "run=", "no rank works"),
    (lambda: views.explore_stall(3), "again=3", "must be a function"),
    (lambda: views.rounds(run(lambda comm: comm.rank and comm.compute("work", seconds=1), 2)), "0 does not compute"),
    (lambda: views.pieces_sent({"a": collective("all_reduce", 8), "b": collective("all_reduce", 4)}), "[4, 8]"),
    (lambda: views.pieces_sent({"shift": exchanges(1)}), "runs['shift']", "name no pieces"),
    (lambda: views.pieces_film(exchanges(1)), "from rank 0 to 1 has the"),
    (lambda: views.pieces_film(collective("all_reduce", 8)), "run: 8 ranks; the pieces of 2 to 6 can be filmed"),
    (lambda: views.pieces_film(run(nothing, 4)), "run: messages of nothing; those of one collective"),
    (lambda: views.pieces_film(run(lambda comm, x: comm.all_reduce(comm.all_gather(x)), 4, np.ones(8))),
     "run: messages of all_gather, all_reduce; those of one collective"),
    (lambda: views.film("ring"), "source='ring'", "no film"),
    (lambda: views.film({}), "source={}", "no film"),
    (lambda: views.film(run(nothing, 2)), "source=", "nothing takes any time"),
    (lambda: views.film(run(nothing, 9), waits=True), "9 ranks", "8"),
    (lambda: views.film(dict.fromkeys("abcd", WORK)), "runs=", "1 to 3"),
    (lambda: views.film({"wide": exchanges(1, 5)}), "source", "4 ranks of each run"),
    (lambda: views.film({"1F1B by a watch": WORK}), "source", "15 letters"),
    (lambda: views.film({"wide": exchanges(1, 3)}, messages=True), "wide", "3 ranks"),
    (lambda: views.film({"many": exchanges(3)}, messages=True), "many", "3 messages"),
    # sequence
    (lambda: views.ring_masks(rule=3), "rule=3: must be a function"),
    (lambda: views.ring_masks(layout="striped", rule=max), "is for layout='zigzag' and causal=True, not 'striped'"),
    (lambda: zigzag(slice(2), slice(2)), "rule returned (slice(None, 2, None)"),
    (lambda: zigzag(slice(2), 2, True), "expected (slice of queries, slice of keys, whether causal"),
    (lambda: zigzag(slice(None, None, 2), slice(2), True), "slices with a step cannot be drawn"),
    (lambda: zigzag(slice(0), slice(2), False), "selects no pair"),
    (lambda: views.packed_ring([0, 2048], 4), "documents[-1]=2048: must be a whole number from 1 to 1024"),
    (lambda: views.packed_ring([0, 6, 64], 4, "zigzag"), "two for each of 4 ranks"),
    (lambda: views.ring_film(own_ring(works=3)), "rank 0 computes 3 times; with causal=False and", "attends 4 tiles"),
    (lambda: views.ring_film(own_ring(), causal=True), "rank 0 computes 4 times; with causal=True and", "1 tile"),
    (lambda: views.ring_film(own_ring(to_the_left=True)), "sends to 3, 3, 3; in a ring it sends 3 messages to rank 1"),
    (lambda: views.ring_film(own_ring(), backward=True), "in a ring it sends 7 messages to rank 1, backward"),
    (lambda: views.ring_film(own_ring(5)), "run: 5 ranks; a ring of 2 to 4 can be drawn"),
    (lambda: views.ring_film(run(nothing, 4)), "run: rank 0 sends to nobody; in a ring it sends 3 messages to rank 1"),
    (lambda: views.compare_rings({"mine": own_ring()}), "runs['mine']: layout='mine': use one of contiguous"),
    (lambda: views.compare_rings({"zigzag": collective("all_reduce", 4)}), "runs['zigzag']: run: rank 0 sends to 1, 1"),
    (lambda: views.double_ring_film(double_ring(6), True, "zigzag"), "run: 6 ranks; this film has two nodes of two"),
    (lambda: views.double_ring_film(double_ring(4, 4), True, "zigzag"), "0 sends 3 messages inside its node and 0"),
    (lambda: views.double_ring_film(double_ring(), True, "contiguous"), "rank 0 computes 4 times; with causal=True"),
    (lambda: views.attention_film(attention(greets), "ring"), "rank 0 sends 4 messages to rank 1; in ring it sends 3"),
    (lambda: views.attention_film(attention(ring_attention, causal=True), "ring"), "computes 1 time; in ring it"),
    (lambda: views.attention_film(attention(ring_attention), "ring", causal=True), "causal=True: only USP is filmed"),
    (lambda: views.attention_film(attention(ring_attention), "ring", ulysses=2), "ulysses=2: the groups of USP; a"),
    (lambda: views.attention_film(attention(ring_attention), "ring", ranks_per_node=3), "ranks_per_node=3: must"),
    (lambda: views.attention_film(attention(ring_attention, 8), "ring"), "run: 8 ranks; attention on 2 or 4"),
    # tensor
    (lambda: views.tensor(ranks_per_node=3), "ranks_per_node=3: groups of 1, 2, 4, 8, 16, 32, 64 ranks must fill"),
    (lambda: views.explore_tensor(ranks_per_node=24), "ranks_per_node=24: use one of 8, 16, 32, 64"),
    (lambda: views.wrong_gradients({"a": ONE[:0]}, {"a": ONE[:0]}), "expected", "must have one"),
    (lambda: views.wrong_gradients({"a": ONE}, {"a": ONE, "b": ONE}), "found lacks b"),
    (lambda: views.wrong_gradients({"a": ONE}, {"a": ONE[0]}), "found['a'] has shape (1, 2, 3)"),
    (lambda: views.mlp_film(computes(*STEPS[::-1])), "rank 0 computes ['gradients',", "this film needs ['columns'"),
    (lambda: views.mlp_film(computes(*STEPS, sends=True)), "from rank 0 to 1 has the label None, which names no piece"),
    (lambda: views.mlp_film(labs.mlp_run(labs.mlp_step, 6)), "run: 6 ranks; a step of 2 to 4 can be filmed"),
    (lambda: views.whole_or_partial("ab", {"a": ONE}), "of_ranks='ab': must be a list"),
    (lambda: views.whole_or_partial([], {"a": ONE}), "len(of_ranks)=0: must be a whole number from 1 to 8"),
    (lambda: views.whole_or_partial([{"a": ONE}], {"a": 3}), "alone['a']=3: must be an array with 2 axes or more"),
    (lambda: views.whole_or_partial([{"b": ONE}], {"a": ONE}), "of_ranks[0]: needs a of shape (1, 2, 3)"),
    # zero
    (lambda: views.price_tag(P=12), "12"),
    (lambda: views.price_tag(products=1.5), "products=1.5"),
    (lambda: views.zero_film(step(3)), "film fewer ranks"),  # 4 ranks with 6 blocks: 64 kB
    (lambda: views.zero_film(step(2, size=3)), "run: stage 3 has 12 all-gathers, one before each use"),
    (lambda: views.zero_film(step(3, size=3, keep_last_block=True)), "run: stage 3 has 12 all-gathers"),
    (lambda: views.zero_film(run(nothing, 2)), "run: 2 ranks and 0 computations called 'forward"),
    # pipeline
    (lambda: views.schedule([1]), "schedule=[1]: must be a schedule, or what simulate"),
    (lambda: views.schedule(simulate(gpipe(2, 2)), Costs()), "was simulated with costs of its own"),
    (lambda: views.schedule(WIDE[0], kept=KEPT), "kept=", "each of the 2 stages"),
    (lambda: views.schedule(one_f_one_b(4, 8), why=(0, 1)), "why=(0, 1): rank 0 is idle 4 to 10, 24 to 25, 27 to 28"),
    (lambda: views.schedule(one_f_one_b(4, 8), why=4), "why=4: choose a rank from 0 to 3, or"),
    (lambda: views.schedule(one_f_one_b(4, 8), why="rank 0"), "why='rank 0': choose a rank"),
    (lambda: views.schedule(one_f_one_b(1, 2), why=0), "why=0: rank 0 is idle never"),
    *((lambda stops=stops: views.film(WIDE[1], stops=stops), "stops=", "ascend from 0")
      for stops in ({1: "late"}, {0: "a", 3: "b", 2: "c"}, {0: "a", 99: "after the end"}, {})),
    (lambda: views.film(simulate(gpipe(2, 2)), costs=Costs()), "costs=", "its schedule instead"),
    (lambda: views.film(Schedule([[], [Action("F", 0, 0), Action("B", 0, 0)]]), phases=True), "rank 0 has no forward"),
    (lambda: views.film([zb_h1(3, 4)]), "1 schedules", "2 to 12"),
    (lambda: views.film([zb_h1(3, 4), gpipe(3, 4)]), "source", "the same actions"),
    (lambda: views.film([one_f_one_b(3, 4), one_f_one_b(2, 4)]), "source", "the same actions"),
    (lambda: views.film([WIDE[0], WIDE[0]], names=["a"]), "names=", "one for each of 2 schedules"),
    (lambda: views.reorder("1F1B", [(11, 3)]), "start='1F1B'", "must be a schedule"),
    *((lambda goals=goals: views.reorder(WIDE[1], goals), "goals=", "must be (makespan, most kept) each")
      for goals in ([], 11, [(0, 1)], [(11, "much")])),
    (lambda: views.bubble_prices(chunks=1), "chunks=1", "at least 2"),
    (lambda: views.bubble_prices(first="1F1B"), "first='1F1B'", "must be a function of (p, m)"),
    (lambda: views.frontier(4, 8, ["1F1B"]), "schedules=['1F1B']", "one or more"),
    (lambda: views.frontier(4, 8, {"Ada": gpipe(3, 8)}), "schedules['Ada']=", "4 ranks and 8"),
    (lambda: steps_of({"a": zb_h1(4, 8), "b": zb_h1(8, 8)}), "schedules=['a', 'b']", "same ranks"),
    (lambda: steps_of({}), "schedules=[]", "one or more"),
    (lambda: views.step_by_costs({"1F1B": WIDE[0]}, {}, schedule="1F1B", layers=[2, 2]), "costs={}", "one or more"),
    (lambda: views.explore_step_costs({"1F1B": WIDE[0]}, [[2, 2]], {"told": Costs}), "layers=[[2, 2]]", "two or more"),
    (lambda: views.won_back({}, 1, 1), "ran=", "at least one timeline"),
    (lambda: views.won_back({"1F1B": simulate(WIDE[0]), "GPipe": simulate(gpipe(4, 4))}, 1, 1), "the same number of"),
    # train
    (lambda: views.film_of_sums("norm"), "program='norm': must be a function"),
    (lambda: views.film_of_sums(lambda *four: None), "returned None for kind 'cut': must be an array of shape"),
    (lambda: views.groups_on_mesh(0, {"ep": 2}), "must be the sizes of dp, pp, cp and tp"),
    (lambda: views.groups_on_mesh(0, {"dp": 64}), "these are 64 ranks, and 32 are the most"),
    *((lambda loss=loss: views.line_up({"1": [2.0, loss], "2": [2.0, 1.0]}), "losses['1']: each loss must be finite")
      for loss in (0.0, NAN)),
    (lambda: views.line_up({"1": LOSS}), "2 to 8"),
    (lambda: views.line_up({"1": [1.0], "2": [1.0]}), "two stops or more"),
    (lambda: views.loss_curves({"right": LOSS}), "losses={", "2 to 4"),
    (lambda: views.loss_curves([LOSS, LOSS]), "losses=[", "{name: losses}"),
    (lambda: views.loss_curves({"right": LOSS, "wrong": LOSS[:1]}), "[1, 3]", "same number"),
    (lambda: views.loss_curves({"right": [], "wrong": []}), "[0]", "1 or more"),
    (lambda: views.loss_curves({"right": LOSS, "wrong": "bad"}), "losses={", "a list of numbers"),
    (lambda: views.loss_curves({"a": [1.0, 0.0], "b": [1.0, 1.0]}, log=True), "log=True", "loss of 0"),
    (lambda: views.who_sees({}, {"norm": 1}, "bf16"), "differences={}: must be"),
    (lambda: views.who_sees({"none": RIGHT}, {"norm": 1}, "bf16"), "2 to 12 rows"),
    (lambda: views.who_sees({"none": RIGHT, "a bug": RIGHT}, {}, "bf16"), "prices={}: must be"),
    (lambda: views.who_sees({"none": RIGHT, "a bug": RIGHT}, {"loss": 2}, "bf16"), "needs every check of prices"),
    (lambda: views.who_sees({"none": RIGHT, "a bug": RIGHT}, {"norm": -1}, "bf16"), "prices['norm']=-1"),
    (lambda: views.who_sees({"none": {"norm": []}, "a bug": {"norm": []}}, {"norm": 1}, "bf16"), "1 or more"),
    *((lambda off=off: views.who_sees({"none": RIGHT, "a bug": {"norm": [0.1, off]}}, {"norm": 1}, "bf16"),
       f"differences['a bug']['norm']={off}") for off in (-0.5, NAN)),
    # plan
    (lambda: views.forgotten({}), "must be estimates by the forgotten kind"),
    (lambda: views.forgotten({"rest": PLAN}), "'rest' is no kind of seconds"),
    (lambda: views.forgotten({"dp": PLAN}, best=6.6), "best=6.6"),
    (lambda: views.forgotten({"dp": PLAN}, errors={"tp": 0.1}), "must have the kinds of chosen, dp"),
    (lambda: views.predicted_and_measured(3), "table=3"),
    (lambda: views.predicted_and_measured(Validation()), "table=", "with a row or more"),
    (lambda: views.refuted({}), "plans="),
    (lambda: views.refuted({"a": 0}), "a=0"),
    # experts
    (lambda: views.token_way([1, 1]), "chosen=[1, 1]: experts from 0 to 255 are needed, each once"),
    (lambda: views.token_way([256]), "chosen=[256]: experts from 0 to 255"),
    (lambda: views.token_way([1], 10), "num_experts=10: does not divide among 64 ranks"),
    (lambda: views.rows_way([[[0]]], 1), "chosen has shape (1, 1, 1): [P][T][k] whole numbers are needed"),
    (lambda: views.rows_way([[[0]], [[0], [1]]], 2), "chosen: each rank needs [T, k]"),
    (lambda: views.rows_way([[[0.5]], [[0]]], 2), "chosen has shape (2, 1, 1): [P][T][k] whole numbers"),
    (lambda: views.rows_way([[[0]], [[0]]], 3), "num_experts=3: a multiple of the 2 ranks is needed, at most 10"),
    (lambda: views.rows_way([[[0]], [[2]]], 2), "chosen: experts from 0 to 1 are needed"),
    (lambda: views.rows_way([[[0]] * 13] * 2, 2), "chosen: a rank has 26 rows, and 24 are the most"),
    (lambda: views.balanced_rows(labs.balanced, [np.ones((2, 4))]), "scores: of 1 ranks and 4 experts; 2 to 4 ranks"),
    (lambda: views.balanced_rows(labs.balanced, [np.ones((2, 3))] * 2), "scores: of 2 ranks and 3 experts"),
    (lambda: views.copies(nodes=3), "nodes=3: must divide the 256 experts"),
    (lambda: views.copies(k=300), "k=300: there are 256 experts"),
    (lambda: views.copies(limit=9), "limit=9: there are 8 nodes"),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=[" ".join(said) for _, *said in REFUSED])
def test_refused_by_name_and_value(row):
    check_refused(*row)
