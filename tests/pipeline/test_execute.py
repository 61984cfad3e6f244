"""Schedules executed on arrays: the serial loss and gradients, the simulated timeline, the simulated memory."""

import math
import re
from itertools import chain
from pathlib import Path

import array_api_strict
import numpy as np
import pytest

from parlab import arrays
from parlab.nn.config import LlamaConfig
from parlab.nn.counting import arrays_in
from parlab.nn.llama import Llama
from parlab.pipeline import (
    Action,
    Costs,
    Pair,
    Schedule,
    execute,
    gpipe,
    interleaved_one_f_one_b,
    looped_bfs,
    naive,
    one_f_one_b,
    partition,
    run_schedule,
    simulate,
    validate,
    zb_h1,
    zb_h2,
)
from parlab.world import Cluster, run

DATA = Path(__file__).parent.parent / "data"
SECOND = 10**12  # picoseconds
IN_ORDER = [
    naive(2, 4),
    gpipe(4, 4),
    one_f_one_b(2, 4),
    one_f_one_b(4, 4),
    interleaved_one_f_one_b(2, 4, 2),
    zb_h1(4, 4),
    zb_h2(2, 4),
    one_f_one_b(1, 4),
]
ALL = [
    *IN_ORDER,
    looped_bfs(2, 4, 2),
    interleaved_one_f_one_b(2, 6, 4, group=3),
    one_f_one_b(8, 8),
    zb_h1(8, 9),
    zb_h2(5, 10),
    Schedule.from_csv(DATA / "pytorch_zb1p_2rank.csv"),
    Schedule.from_csv(DATA / "pytorch_dualpipev_4rank_10mb.csv"),
]


class TanhStage:
    """y = tanh(x W): a stage whose backward has two parts. The last one's loss is the mean of (y − target)²/2."""

    def __init__(self, weights, name):
        self.weights, self.name = weights, name

    def forward(self, x, target=None):
        xp = arrays.namespace(x)
        y = xp.tanh(x @ self.weights[self.name])
        slope = 1 - y**2
        if target is None:
            return y, (x, slope, None)
        return xp.mean((y - target) ** 2) / 2, (x, slope, y - target)

    def backward_input(self, dy, cache):
        x, slope, error = cache
        if error is not None:
            dy = error * (dy / error.size)
        dz = dy * slope
        return dz @ self.weights[self.name].T, (x, dz)

    def backward_weight(self, pending):
        x, dz = pending
        return {self.name: x.T @ dz}


def tanh_model(stages, microbatches, xp=np, rows=3, width=5):
    rng = np.random.default_rng(stages)
    weights = {f"w{i}": xp.asarray(rng.normal(size=(width, width))) for i in range(stages)}
    batch, targets = (xp.asarray(rng.normal(size=(microbatches * rows, width))) for _ in range(2))
    parts = [slice(i * rows, (i + 1) * rows) for i in range(microbatches)]
    model = [TanhStage(weights, f"w{i}") for i in range(stages)]
    return model, batch, targets, [batch[p, :] for p in parts], [targets[p, :] for p in parts]


def serial(model, x, target):
    """Loss and gradients of the whole batch at once."""
    caches, gradients = [], {}
    for stage in model[:-1]:
        x, cache = stage.forward(x)
        caches.append(cache)
    loss, cache = model[-1].forward(x, target)
    dy = 1.0
    for stage, of_stage in zip(reversed(model), reversed([*caches, cache]), strict=True):
        dy, pending = stage.backward_input(dy, of_stage)
        gradients |= stage.backward_weight(pending)
    return float(loss), gradients


def together(results):
    """The loss and all gradients, from the ranks' parts."""
    losses = [loss for loss, _ in results if loss is not None]
    names = [name for _, gradients in results for name in gradients]
    assert len(losses) == 1
    assert len(names) == len(set(names))
    return losses[0], dict(chain.from_iterable(gradients.items() for _, gradients in results))


def error(found, expected):
    found, expected = arrays.to_numpy(found), arrays.to_numpy(expected)
    return np.max(np.abs(found - expected)) / np.max(np.abs(expected))


def name_of(value):
    return value.name if isinstance(value, Schedule) else None


@pytest.mark.parametrize("xp", [np, array_api_strict], ids=["numpy", "strict"])
@pytest.mark.parametrize("schedule", ALL, ids=name_of)
def test_loss_and_gradients_are_the_serial_ones_to_1e_12(schedule, xp):
    model, batch, target, inputs, targets = tanh_model(schedule.num_stages, schedule.num_microbatches, xp)
    loss, gradients = together(run(run_schedule, schedule.num_ranks, schedule, model, inputs, targets).results)
    expected_loss, expected = serial(model, batch, target)
    assert abs(loss - expected_loss) <= 1e-12 * expected_loss
    assert gradients.keys() == expected.keys()
    assert max(error(gradients[name], expected[name]) for name in expected) <= 1e-12


@pytest.mark.parametrize("schedule", IN_ORDER, ids=name_of)
def test_schedules_that_sum_in_the_same_order_give_the_same_bits(schedule):
    """On the same stages, cut the same way: 8 matrices, as many a stage as it takes."""
    model, _, _, inputs, targets = tanh_model(4, 4)

    class Two:
        def __init__(self, *stages):
            self.stages = stages

        def forward(self, x, *target):
            y, first = self.stages[0].forward(x)
            y, second = self.stages[1].forward(y, *target)
            return y, (first, second)

        def backward_input(self, dy, cache):
            dy, second = self.stages[1].backward_input(dy, cache[1])
            dy, first = self.stages[0].backward_input(dy, cache[0])
            return dy, (first, second)

        def backward_weight(self, pending):
            first, second = (s.backward_weight(p) for s, p in zip(self.stages, pending, strict=True))
            return first | second

    cut = {1: [Two(Two(*model[:2]), Two(*model[2:]))], 2: [Two(*model[:2]), Two(*model[2:])], 4: model}
    loss, gradients = together(
        run(run_schedule, schedule.num_ranks, schedule, cut[schedule.num_stages], inputs, targets).results
    )
    expected_loss, expected = together(run(run_schedule, 4, one_f_one_b(4, 4), model, inputs, targets).results)
    assert loss == expected_loss
    assert all((gradients[name] == expected[name]).all() for name in expected)


# A small Llama

CONFIG = LlamaConfig(
    vocab_size=13,
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
)


@pytest.mark.parametrize(
    "schedule",
    [
        gpipe(2, 3),
        one_f_one_b(3, 4),
        one_f_one_b(8, 8),
        interleaved_one_f_one_b(2, 4, 4),
        looped_bfs(4, 4, 2),
        zb_h1(4, 5),
        zb_h2(3, 5),
    ],
    ids=name_of,
)
@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
def test_a_small_llama_has_the_serial_loss_and_gradients_to_1e_12(schedule, tied):
    config = LlamaConfig(**{**vars(CONFIG), "tie_word_embeddings": tied})
    model = Llama.random(config, seed=3, xp=np, dtype="float64")
    tokens = np.random.default_rng(4).integers(13, size=(schedule.num_microbatches * 2, 6))  # [m·B, S + 1]
    expected_loss, expected = model.loss_and_gradients(tokens[:, :-1], tokens[:, 1:])
    inputs, targets = (
        np.split(tokens[:, :-1], schedule.num_microbatches),
        np.split(tokens[:, 1:], schedule.num_microbatches),
    )
    stages = model.stages(partition(8, schedule.num_stages))
    results = run(run_schedule, schedule.num_ranks, schedule, stages, inputs, targets).results
    (loss,) = (loss for loss, _ in results if loss is not None)
    assert abs(loss - expected_loss) <= 1e-12 * expected_loss
    for name in expected:
        parts = [gradients[name] for _, gradients in results if name in gradients]
        assert len(parts) == 1 + (tied and name == "model.embed_tokens.weight" and schedule.num_ranks > 1)
        assert error(sum(parts), expected[name]) <= 1e-12


def test_microbatches_of_unequal_size_count_by_their_targets():
    model, batch, target, _, _ = tanh_model(3, 4)
    cuts = [slice(0, 1), slice(1, 6), slice(6, 12)]
    inputs, targets = [batch[c] for c in cuts], [target[c] for c in cuts]
    loss, gradients = together(run(run_schedule, 3, one_f_one_b(3, 3), model, inputs, targets).results)
    expected_loss, expected = serial(model, batch, target)
    assert abs(loss - expected_loss) <= 1e-12 * expected_loss
    assert max(error(gradients[name], expected[name]) for name in expected) <= 1e-12


def test_a_stage_of_dualpipe_has_a_part_of_its_gradient_on_each_of_its_two_ranks():
    def rank(number):
        """The microbatches of the first half enter here, those of the second half at the other end."""
        mine, others = ((0, 1), (2, 3)) if number == 0 else ((2, 3), (0, 1))
        first = [*(Action("F", 0, i) for i in mine), *(Action("F", 1, i) for i in others)]
        pairs = [Pair(Action("F", 0, 4 + number), Action("B", 1, others[0]))]
        rest = [Action("B", 1, others[1]), Action("F", 1, 5 - number), Action("B", 1, 5 - number)]
        return [*first, *pairs, *rest, *(Action("B", 0, i) for i in (*mine, 4 + number))]

    schedule = Schedule([rank(0), rank(1)])
    assert schedule.holders(0) == schedule.holders(1) == (0, 1)
    model, batch, target, inputs, targets = tanh_model(2, 6)
    for costs in (None, Costs(), Costs(pair=3)):
        results = run(run_schedule, 2, schedule, model, inputs, targets, costs=costs).results
        expected_loss, expected = serial(model, batch, target)
        assert abs(sum(loss for loss, _ in results) - expected_loss) <= 1e-12 * expected_loss
        for name in expected:
            assert error(sum(gradients[name] for _, gradients in results), expected[name]) <= 1e-12


# The run is the simulation


@pytest.mark.parametrize("pair", [None, 7], ids=["", "atomic pairs"])
@pytest.mark.parametrize("transfer", [0, 1, 4])
@pytest.mark.parametrize("schedule", ALL, ids=name_of)
def test_the_run_timed_without_port_limits_is_the_simulated_timeline(schedule, transfer, pair):
    model, _, _, inputs, targets = tanh_model(schedule.num_stages, schedule.num_microbatches)
    costs = Costs([2 + s % 2 for s in range(schedule.num_stages)], 3, 1, transfer, pair)
    cluster = Cluster.uniform(latency=transfer, bandwidth=math.inf, ports=None)
    measured = run(
        run_schedule, schedule.num_ranks, schedule, model, inputs, targets, costs=costs, cluster=cluster
    ).timeline
    simulated = simulate(schedule, costs)
    assert measured.makespan == simulated.makespan * SECOND
    assert sorted(measured.computes) == sorted(
        s._replace(start=s.start * SECOND, end=s.end * SECOND) for s in simulated.computes
    )
    assert sorted((t.src, t.dst, t.start, t.end, t.label) for t in measured.transfers) == sorted(
        (t.src, t.dst, t.start * SECOND, t.end * SECOND, t.label) for t in simulated.transfers
    )


@pytest.mark.parametrize("schedule", ALL, ids=name_of)
def test_measured_peak_bytes_are_the_simulated_ones(schedule):
    rows, width = 3, 5
    model, _, _, inputs, targets = tanh_model(schedule.num_stages, schedule.num_microbatches, rows=rows, width=width)
    costs = Costs(transfer=1)
    cluster = Cluster.uniform(latency=1, bandwidth=math.inf, ports=None)
    measured = run(
        run_schedule, schedule.num_ranks, schedule, model, inputs, targets, costs=costs, cluster=cluster
    ).timeline
    one = rows * width * 8  # the bytes of x, of the slope, of dz, of the loss's error
    last = schedule.num_stages - 1
    activation = [
        one * (2 - (s == 0) + (s == last)) for s in range(last + 1)
    ]  # x, which is not counted if it is the batch's, slope, error
    pending = [one * (2 - (s == 0)) for s in range(last + 1)]  # x, dz
    simulated = simulate(schedule, costs)
    for rank in range(schedule.num_ranks):
        steps = simulated.kept_bytes(rank, activation, pending, message=one)
        assert measured.peak_bytes(rank) == max(kept for _, kept in steps)
        assert measured.held(rank)[-1][1] == steps[-1][1] == 0


def bytes_in(cache, but_not):
    """Of the memory under the arrays of a cache, each buffer once."""
    owners = {id(owner): owner for owner in map(arrays.owning_buffer, arrays_in(cache))}
    return sum(arrays.nbytes(owner) for key, owner in owners.items() if key not in but_not)


@pytest.mark.parametrize(
    "schedule",
    [gpipe(4, 4), one_f_one_b(4, 6), interleaved_one_f_one_b(2, 4, 2), zb_h1(4, 6), zb_h2(4, 8)],
    ids=name_of,
)
def test_measured_peak_bytes_of_a_small_llama_are_the_simulated_ones(schedule):
    model = Llama.random(CONFIG, seed=3, xp=np, dtype="float64")
    tokens = np.random.default_rng(4).integers(13, size=(schedule.num_microbatches, 2, 7))  # [m, B, S + 1]
    inputs, targets = list(tokens[:, :, :-1]), list(tokens[:, :, 1:])
    stages = model.stages(partition(8, schedule.num_stages))

    hidden = np.ones((2, 6, 8))  # [B, S, E]
    tables = model.blocks[0].attention.rotary.tables(hidden)  # shared by all ranks and microbatches
    not_kept = {id(owner) for owner in map(arrays.owning_buffer, (tokens, *tables))}
    x, caches = inputs[0], []
    for stage in stages:
        x, cache = stage.forward(x, **({"targets": targets[0]} if stage is stages[-1] else {}))
        caches.append(cache)
    activation = [bytes_in(cache, not_kept) for cache in caches]
    dy, pending = 1.0, []
    for stage, cache in zip(reversed(stages), reversed(caches), strict=True):
        dy, left = stage.backward_input(dy, cache)
        pending.insert(0, bytes_in(left, not_kept))

    measured = run(run_schedule, schedule.num_ranks, schedule, stages, inputs, targets).timeline
    for rank in range(schedule.num_ranks):
        steps = simulate(schedule).kept_bytes(rank, activation, pending, message=hidden.nbytes)
        assert measured.peak_bytes(rank) == bytes_in(tables, ()) + max(kept for _, kept in steps)


def test_1f1b_holds_fewer_bytes_than_gpipe_and_posts_few_receives_ahead():
    model, _, _, inputs, targets = tanh_model(4, 16)
    peaks = {
        make: run(run_schedule, 4, make(4, 16), model, inputs, targets).timeline.peak_bytes(1)
        for make in (gpipe, one_f_one_b)
    }
    assert peaks[one_f_one_b] < peaks[gpipe] / 3


# What cannot run


@pytest.mark.parametrize("seed", range(200))
def test_200_corruptions_run_to_the_right_gradients_or_are_refused_and_nothing_hangs(seed, corrupted):
    schedule = corrupted(seed)
    stages = schedule.num_stages
    model, batch, target, inputs, targets = tanh_model(stages, schedule.num_microbatches)
    arguments = (run_schedule, schedule.num_ranks, schedule, model, inputs, targets)
    if reason := refusal(schedule):
        with pytest.raises(ValueError, match=re.escape(reason)):
            run(*arguments)
    else:
        loss, gradients = together(run(*arguments).results)
        expected_loss, expected = serial(model, batch, target)
        assert abs(loss - expected_loss) <= 1e-12 * expected_loss
        assert max(error(gradients[name], expected[name]) for name in expected) <= 1e-12


def refusal(schedule):
    try:
        validate(schedule)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schedule": gpipe(3, 4)}, "schedule has 3 ranks, comm has 2"),
        ({"schedule": gpipe(1, 4)}, "schedule has 1 ranks, comm has 2"),
        ({"schedule": gpipe(2, 3)}, "inputs has 4 microbatches, the schedule 3: give one array each"),
        ({"targets": []}, "targets has 0 microbatches, the schedule 4"),
        ({"stages": []}, "stages: stage 0 of rank 0 is missing"),
        ({"stages": {1: None}}, "stages: stage 0 of rank 0 is missing"),
    ],
)
def test_arguments_that_do_not_fit_the_schedule_are_refused(change, reason):
    model, _, _, inputs, targets = tanh_model(2, 4)
    arguments = {"schedule": gpipe(2, 4), "stages": model, "inputs": inputs, "targets": targets} | change
    with pytest.raises(ValueError, match=reason):
        run(run_schedule, 2, **arguments)


def own_stages(comm, schedule, model, inputs, targets, like):
    own = {s: model[s] for s in range(schedule.num_stages) if comm.rank in schedule.holders(s)}
    return run_schedule(comm, schedule, own, inputs, targets, like=like)


def test_a_rank_that_holds_only_its_own_stages_needs_to_be_told_what_comes():
    model, batch, target, inputs, targets = tanh_model(4, 4)
    arguments = (own_stages, 2, interleaved_one_f_one_b(2, 4, 2), model, inputs, targets)
    with pytest.raises(ValueError, match="like=None: without stage 1 this rank cannot tell what comes to stage 2"):
        run(*arguments, like=None)
    loss, _ = together(run(*arguments, like=inputs[0]).results)
    assert abs(loss - serial(model, batch, target)[0]) <= 1e-12


class Transposed(TanhStage):
    def backward_input(self, dy, cache):
        dx, pending = super().backward_input(dy, cache)
        return dx.T, pending


def test_a_gradient_of_the_wrong_shape_is_refused_where_it_is_made():
    model, _, _, inputs, targets = tanh_model(3, 4)
    model[1] = Transposed(model[1].weights, "w1")
    with pytest.raises(
        ValueError, match=r"stage 1, microbatch 0: backward_input gave shape \(5, 3\) .* of shape \(3, 5\)"
    ):
        run(run_schedule, 3, one_f_one_b(3, 4), model, inputs, targets)


# Mutants: each breaks one thing that the tests above hold


class Forgetful(TanhStage):
    def backward_weight(self, pending):
        return super().backward_weight(pending) if pending[1].sum() > 0 else {self.name: 0.0 * self.weights[self.name]}


def test_mutant_that_drops_a_microbatchs_weight_gradient_is_seen():
    model, batch, target, inputs, targets = tanh_model(3, 6)
    _, expected = serial(model, batch, target)
    model[1] = Forgetful(model[1].weights, "w1")
    _, gradients = together(run(run_schedule, 3, zb_h1(3, 6), model, inputs, targets).results)
    assert [name for name in expected if error(gradients[name], expected[name]) > 1e-12] == ["w1"]


def test_mutant_without_the_microbatchs_weight_in_the_loss_gives_m_times_the_gradients(monkeypatch):
    monkeypatch.setattr(execute._Rank, "_weight", lambda self, microbatch: 1.0)
    model, batch, target, inputs, targets = tanh_model(3, 6)
    _, gradients = together(run(run_schedule, 3, one_f_one_b(3, 6), model, inputs, targets).results)
    _, expected = serial(model, batch, target)
    assert all(error(gradients[name], 6 * expected[name]) <= 1e-12 for name in expected)


def test_mutant_that_posts_each_receive_only_when_it_is_needed_is_late(monkeypatch):
    def late(program, rank, joined):
        number = {row: n for n, step in enumerate(execute.steps_of(program, rank, joined)) for row in step}
        return sorted(r._replace(after=number[r.row]) for r in honest(program, rank, joined))

    honest = execute.receives
    monkeypatch.setattr(execute, "receives", late)
    model, _, _, inputs, targets = tanh_model(4, 8)
    costs = Costs(transfer=1)
    cluster = Cluster.uniform(latency=1, bandwidth=math.inf, ports=None)
    timeline = run(run_schedule, 4, gpipe(4, 8), model, inputs, targets, costs=costs, cluster=cluster).timeline
    assert timeline.makespan > simulate(gpipe(4, 8), costs).makespan * SECOND


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_p_ranks_of_v_chunks_send_each_microbatch_over_pv_minus_1_boundaries_and_back(chunks):
    model, _, _, inputs, targets = tanh_model(3 * chunks, 6)
    schedule = interleaved_one_f_one_b(3, 6, chunks)
    timeline = run(run_schedule, 3, schedule, model, inputs, targets).timeline
    assert sum(timeline.messages(rank) for rank in range(3)) == 2 * 6 * (3 * chunks - 1)
    assert sum(timeline.bytes_sent(rank) for rank in range(3)) == 2 * 6 * (3 * chunks - 1) * inputs[0].nbytes


def test_messages_are_labelled_with_the_action_that_made_them():
    model, _, _, inputs, targets = tanh_model(2, 2)
    timeline = run(run_schedule, 2, one_f_one_b(2, 2), model, inputs, targets).timeline
    assert {t.label for t in timeline.transfers} == {"0F0", "0F1", "1B0", "1B1"}
    assert str(Action("F", 0, 0)) == "0F0"
