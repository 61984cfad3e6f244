"""A step of a small Mixtral on a mesh with ep equals the serial one: loss, norm, every gradient, new weights."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import array_api_strict
import numpy as np
import pytest

from parlab import run
from parlab.arrays import asarray, to_numpy
from parlab.nn.mixtral import Mixtral, MixtralConfig
from parlab.nn.mixtral import load as load_mixtral
from parlab.nn.optimizer import AdamW, clip_gradients, gradient_norm
from parlab.pipeline import dualpipe, one_f_one_b, zb_v
from parlab.train import Mesh, Trainer, bytes_by_strategy, export, load, save
from parlab.zero import LossScale
from tests.nn.parity import worst_error
from tests.train.models import LR, SIZES, batches

B, S = 8, 8
Sizes = tuple[tuple[str, Any], ...]  # changes of a configuration


@cache
def mixtral(sizes: Sizes = (), xp: Any = np) -> Mixtral:
    """Random matrices, and norm weights that are random too: at 1 they hide a missing weight."""
    experts = {"intermediate_size": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    made = Mixtral.random(MixtralConfig(**{**SIZES, **experts, **dict(sizes)}), seed=3, xp=xp, dtype="float64")
    draw = np.random.default_rng(4)
    for name, weight in made.weights.items():
        if weight.ndim == 1:
            made.weights[name] = asarray(draw.uniform(0.5, 1.5, weight.shape), xp, weight.dtype)
    return made


@cache
def serial(sizes: Sizes = (), max_norm: float | None = None, B: int = B, S: int = S) -> tuple[Any, ...]:
    """Loss, norm and gradients of a step, and the weights after two."""
    start, text = mixtral(sizes), batches(B, S, 2)
    trained, optimizer = Mixtral(start.config, {n: x.copy() for n, x in start.weights.items()}), AdamW(lr=LR)
    first = trained.loss_and_gradients(*text[0])
    for batch in text:
        _, gradients = trained.loss_and_gradients(*batch)
        optimizer.step(trained.weights, gradients if max_norm is None else clip_gradients(gradients, max_norm)[0])
    return first[0], gradient_norm(first[1]), first[1], trained.weights


def wrong(
    axes: dict[str, int], change: Any = id, sizes: Sizes = (), xp: Any = np, B: int = B, S: int = S, **options: Any
) -> set[str]:
    """The checks that two steps on the mesh fail."""
    text = batches(B, S, 2, xp)
    loss, norm, gradients, weights = serial(sizes, options.get("max_norm"), B, S)

    def program(comm):
        trainer = Trainer(Mesh(comm, **axes), mixtral(sizes, xp), AdamW(lr=LR), **options)
        change(trainer)
        result = trainer.step(*text[0])
        whole = trainer.full_gradients()
        trainer.step(*text[1])
        own = {n: to_numpy(x).tobytes() for n, x in trainer.replica.full_weights().items()}
        place = trainer.own.model.slices
        return result, whole, trainer.full_weights(), {(n, place[n]): bits for n, bits in own.items()}

    found, copies = set(), {}
    ranks = math.prod(size for axis, size in axes.items() if axis != "ep")
    limits = {"loss": 1e-12, "norm": 1e-12, "gradients": 1e-12, "weights": 1e-8}  # AdamW magnifies what is nearly zero
    for result, own_gradients, own_weights, own in run(program, ranks).results:
        off = {
            "loss": abs(result.loss / loss - 1),
            "norm": abs(result.norm / norm - 1),
            "gradients": worst_error([to_numpy(own_gradients[n]) for n in gradients], list(gradients.values())),
            "weights": worst_error([to_numpy(own_weights[n]) for n in weights], list(weights.values())),
        }
        found |= {name for name, error in off.items() if not error <= limits[name]}
        for key, bits in own.items():
            if copies.setdefault(key, bits) != bits:
                found.add("copies")
    return found


TIED: Sizes = (("tie_word_embeddings", True),)
MESHES = {
    "one rank": ({}, {}),
    "dp 4, ep 2": ({"dp": 4, "ep": 2}, {"zero": 1}),
    "dp 4, ep 4, zero 0": ({"dp": 4, "ep": 4}, {"zero": 0, "max_norm": 0.1}),
    "dp 4, ep 2, zero 0, tied": ({"dp": 4, "ep": 2}, {"zero": 0, "sizes": TIED}),
    "dp 4, ep 2, zero 3": ({"dp": 4, "ep": 2}, {"zero": 3, "max_norm": 0.1}),
    "ep over cp": ({"dp": 2, "cp": 2, "ep": 4}, {"zero": 2}),
    "ep inside cp": ({"dp": 2, "cp": 2, "ep": 2}, {"zero": 2, "reduce": "accumulate"}),
    "dp, pp, ep": ({"dp": 2, "pp": 2, "ep": 2}, {"zero": 3, "sizes": TIED}),
    "DualPipe": ({"dp": 2, "pp": 2, "ep": 2}, {"zero": 1, "schedule": dualpipe(2, 4)}),
    "split backward": ({"dp": 2, "pp": 2, "ep": 2}, {"zero": 3, "schedule": zb_v(2, 2)}),
    "tp": ({"dp": 2, "tp": 2, "ep": 2}, {"zero": 1, "max_norm": 0.1}),
    "tp that does not divide an expert's columns": (
        {"dp": 2, "tp": 4, "ep": 2},
        {"sizes": (("intermediate_size", 6), ("num_attention_heads", 4))},
    ),
    "sequence parallelism": ({"dp": 2, "tp": 2, "ep": 2}, {"zero": 2, "sequence_parallel": True}),
    "all, recomputed": (
        {"dp": 2, "pp": 2, "cp": 2, "tp": 2, "ep": 4},
        {"zero": 3, "sequence_parallel": True, "recompute": "full", "max_norm": 0.1},
    ),
    "all, zero 0": ({"dp": 2, "pp": 2, "cp": 2, "tp": 2, "ep": 2}, {"zero": 0, "max_norm": 0.1}),
}


@pytest.mark.parametrize("name", MESHES)
def test_a_step_of_a_mixtral_is_the_serial_one(name):
    axes, options = MESHES[name]
    assert wrong(axes, **options) == set()


def test_bytes_of_tokens_are_counted_under_ep():
    def program(comm):
        Trainer(Mesh(comm, dp=2, ep=2), mixtral(), AdamW()).step(*batches(B, S)[0])

    found = bytes_by_strategy(run(program, 2).timeline)
    assert found["ep"] > 0
    assert set(found) == {"dp", "pp", "cp", "tp", "norm", "ep"}


def test_a_step_of_a_mixtral_is_the_serial_one_inside_the_array_standard():
    assert wrong({"dp": 2, "ep": 2}, sizes=(("num_hidden_layers", 1),), xp=array_api_strict) == set()


# Mistakes


def divided_by_edp(trainer):
    """Not by dp · cp: then the gradients of experts are ep times too large."""
    for gradients in trainer.replica._gradients.values():
        if gradients.comm is trainer.job.mesh.edp:
            summed, ep = gradients.reduced, trainer.job.mesh.ep.size
            gradients.reduced = lambda summed=summed, ep=ep: summed() * ep


def test_expert_gradients_divided_by_edp_are_seen_by_norm_and_gradients_and_not_by_the_loss():
    axes = {"dp": 4, "ep": 2}
    assert wrong(axes, zero=2) == set()
    found = wrong(axes, divided_by_edp, zero=2)
    assert {"norm", "gradients"} <= found
    assert "loss" not in found


def test_experts_summed_over_dp_and_cp_add_different_experts_up(monkeypatch):
    axes, right = {"dp": 4, "ep": 2}, Mesh.__init__

    def mistaken(self, comm, **axes):
        right(self, comm, **axes)
        self.edp = self.data

    assert wrong(axes, zero=0) == set()
    monkeypatch.setattr(Mesh, "__init__", mistaken)
    assert {"norm", "gradients", "weights"} <= wrong(axes, zero=0)


@pytest.mark.parametrize("zero", [0, 1])
def test_a_norm_of_one_ranks_experts_alone_is_seen_by_itself_and_clipped_weights(zero):
    axes = {"dp": 4, "ep": 2}

    def one_expert_part(trainer):
        alone = trainer.job.mesh.comm.split(trainer.job.mesh.comm.rank) if zero == 0 else trainer.job.mesh.edp
        trainer.replica.model_parallel = trainer.replica.model_parallel._replace(comm=alone)

    assert {"norm", "weights"} <= wrong(axes, one_expert_part, zero=zero, max_norm=0.1)


def test_a_norm_that_counts_dense_weights_once_for_each_rank_of_ep_is_seen():
    def counted_twice(trainer):
        trainer.replica.model_parallel.in_norm.update(dict.fromkeys(trainer.replica.model_parallel.in_norm, 1.0))

    assert wrong({"dp": 2, "ep": 2}, counted_twice, zero=0) == {"norm"}


# The mesh


@pytest.mark.parametrize(
    ("axes", "ep", "edp"),
    [
        ({"dp": 4, "ep": 2}, [[0, 1], [0, 1], [2, 3], [2, 3]], [[0, 2], [1, 3], [0, 2], [1, 3]]),
        ({"dp": 2, "tp": 2, "ep": 2}, [[0, 2], [1, 3]] * 2, [[0], [1], [2], [3]]),
        ({"dp": 2, "cp": 2, "ep": 4}, [[0, 1, 2, 3]] * 4, [[0], [1], [2], [3]]),
    ],
)
def test_ep_is_consecutive_ranks_of_dp_and_cp_and_edp_the_same_place_in_each(axes, ep, edp):
    def members(comm):
        mesh = Mesh(comm, **axes)
        own = np.array([comm.rank])
        return [group.all_gather(own).tolist() for group in (mesh.ep, mesh.edp)]

    assert run(members, 4).results == [list(both) for both in zip(ep, edp, strict=True)]


# Checkpoints


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_a_checkpoint_of_one_ep_opens_under_any_other(zero, tmp_path):
    sizes = (("num_hidden_layers", 2),)
    text, start = batches(B, S, 2), mixtral(sizes)
    _, _, _, weights = serial(sizes)

    def begin(comm):
        trainer = Trainer(Mesh(comm, dp=4, ep=2), start, AdamW(lr=LR), zero=zero)
        trainer.step(*text[0])
        save(trainer, tmp_path)

    def go_on(comm, axes, stage):
        trainer = load(tmp_path, Mesh(comm, **axes), zero=stage, xp=np)
        trainer.step(*text[1])
        export(trainer, tmp_path / "model")
        return trainer.full_weights()

    run(begin, 4)
    for ranks, axes, stage in ((4, {"dp": 4, "ep": 4}, 3), (2, {"tp": 2}, 0), (4, {"dp": 2, "pp": 2, "ep": 2}, 1)):
        for found in run(go_on, ranks, axes, stage).results:
            assert worst_error([found[n] for n in weights], list(weights.values())) <= 1e-8
    exported = load_mixtral(tmp_path / "model", xp=np)
    assert worst_error([exported.weights[n] for n in weights], list(weights.values())) <= 1e-8


# Balance

BALANCED = {"auxiliary": 0.3, "bias_rate": 0.02}


@cache
def balanced_serial(steps: int = 3) -> tuple[Any, ...]:
    """Weights and biases of serial steps on whole batches, and the last step's loads: [L][N]."""
    start = mixtral()
    trained = Mixtral(start.config, {n: x.copy() for n, x in start.weights.items()}, **BALANCED)
    optimizer = AdamW(lr=LR)
    for tokens, targets in batches(B, S, steps):
        optimizer.step(trained.weights, trained.loss_and_gradients(tokens, targets)[1])
        loads = [mixture.counted for mixture in trained.mixtures]
        trained.rebalance()
    return trained.weights, [mixture.bias for mixture in trained.mixtures], loads


def wrong_balance(axes: dict[str, int], m: int = 1, change: Any = id, **options: Any) -> set[str]:
    """Of `weights`, `biases` and `loads` those that differ from serial after three steps."""
    weights, biases, loads = balanced_serial()

    def program(comm):
        schedule = one_f_one_b(axes.get("pp", 1), m)
        trainer = Trainer(Mesh(comm, **axes), mixtral(), AdamW(lr=LR), schedule=schedule, **BALANCED, **options)
        change(trainer)
        for batch in batches(B, S, 3):
            trainer.step(*batch)
        return trainer.full_weights(), trainer.biases, trainer.mixtures.loads

    found = set()
    for own, own_biases, own_loads in run(
        program, math.prod(size for axis, size in axes.items() if axis != "ep")
    ).results:
        if worst_error([own[n] for n in weights], list(weights.values())) > 1e-8:
            found.add("weights")
        found |= {"biases"} if own_biases != biases else set()
        found |= {"loads"} if own_loads != loads else set()
    return found


@pytest.mark.parametrize(
    ("axes", "m", "options"),
    [
        ({"dp": 2, "ep": 2}, 2, {"zero": 3, "recompute": "full"}),
        ({"dp": 2, "cp": 2, "ep": 4}, 1, {"zero": 2}),
        ({"dp": 2, "pp": 2, "ep": 2}, 2, {"zero": 0}),
        ({"dp": 2, "tp": 2, "ep": 2}, 2, {"zero": 1, "sequence_parallel": True}),
    ],
)
def test_steps_with_the_auxiliary_loss_and_the_bias_equal_serial_ones_and_the_loads_are_counted_globally(
    axes, m, options
):
    assert wrong_balance(axes, m, **options) == set()


@pytest.mark.parametrize(
    ("axes", "schedule", "options"),
    [
        ({}, one_f_one_b(1, 8), {"zero": 0}),
        ({"dp": 2, "ep": 2}, one_f_one_b(1, 4), {"zero": 3}),
        ({"dp": 2, "ep": 2}, one_f_one_b(1, 2), {"zero": 1}),
        ({"dp": 2, "pp": 2, "ep": 2}, zb_v(2, 4), {"zero": 3}),
        ({"dp": 2, "pp": 2, "ep": 2}, dualpipe(2, 4), {"zero": 1}),
        ({"dp": 2, "pp": 2, "cp": 2, "tp": 2, "ep": 4}, one_f_one_b(2, 4), MESHES["all, recomputed"][1]),
    ],
    ids=str,
)
def test_gradients_with_an_auxiliary_loss_are_the_serial_ones_of_the_whole_batch_on_every_mesh(axes, schedule, options):
    """Loads counted over a microbatch alone are off by 3e-3 here: f would be another one for each number of them."""
    start, (tokens, targets) = mixtral(), batches(B, S)[0]
    expected = Mixtral(start.config, start.weights, auxiliary=0.3).loss_and_gradients(tokens, targets)[1]
    plain = start.loss_and_gradients(tokens, targets)[1]
    router = "model.layers.0.block_sparse_moe.gate.weight"
    assert not np.allclose(expected[router], plain[router], rtol=1e-3)  # the auxiliary loss is there

    def program(comm):
        trainer = Trainer(Mesh(comm, **axes), start, AdamW(), auxiliary=0.3, schedule=schedule, **options)
        trainer.step(tokens, targets)
        return trainer.full_gradients()

    for own in run(program, math.prod(size for axis, size in axes.items() if axis != "ep")).results:
        assert worst_error([own[n] for n in expected], list(expected.values())) <= 1e-12


def test_f_of_a_ranks_own_tokens_alone_trains_other_weights_and_a_bias_of_them_alone_differs_from_rank_to_rank():
    def own_f(trainer):
        for mixture in trainer.mixtures.of_layer.values():
            mixture.together = ()

    assert "weights" in wrong_balance({"dp": 4, "ep": 2}, change=own_f)

    def own_counts(trainer):
        trainer.job.mesh.data = trainer.job.mesh.comm.split(trainer.job.mesh.comm.rank)

    assert {"biases", "loads"} <= wrong_balance({"dp": 4, "ep": 2}, change=own_counts)


def test_a_checkpoint_keeps_the_biases_of_all_layers(tmp_path):
    text = batches(B, S, 3)
    weights, biases, _ = balanced_serial()

    def begin(comm):
        trainer = Trainer(Mesh(comm, dp=2, pp=2, ep=2), mixtral(), AdamW(lr=LR), **BALANCED)  # m = 2
        for batch in text[:2]:
            trainer.step(*batch)
        save(trainer, tmp_path)

    def go_on(comm):
        trainer = load(tmp_path, Mesh(comm, dp=2, tp=2, ep=2), schedule=one_f_one_b(1, 2), xp=np, **BALANCED)
        trainer.step(*text[2])
        return trainer.full_weights(), trainer.biases

    run(begin, 4)
    for own, own_biases in run(go_on, 4).results:
        assert own_biases == biases
        assert worst_error([own[n] for n in weights], list(weights.values())) <= 1e-8


@pytest.mark.parametrize("zero", [0, 3])
def test_a_step_after_a_skipped_one_has_its_own_loads_gradients_and_biases_and_not_those_of_both(zero):
    """The first batch overflows: weights and biases stay, so the second step is another trainer's first."""
    first, second = batches(B, S, 2)

    def program(comm, overflow):
        mesh, schedule = Mesh(comm, dp=2, pp=2, ep=2), one_f_one_b(2, 4)
        options = {"schedule": schedule, "zero": zero, "loss_scale": LossScale(8.0, interval=9), **BALANCED}
        trainer = Trainer(mesh, mixtral(), AdamW(lr=LR), **options)
        if overflow:
            add = trainer.replica.add_gradients
            trainer.replica.add_gradients = lambda block, own: add(block, {n: x * np.inf for n, x in own.items()})
            assert trainer.step(*first).skipped
            trainer.replica.add_gradients = add
        trainer.step(*second)
        return trainer.mixtures.loads, trainer.biases, trainer.full_gradients()

    for (loads, biases, gradients), (own_loads, own_biases, own) in zip(
        run(program, 4, False).results, run(program, 4, True).results, strict=True
    ):
        assert own_loads == loads
        assert {sum(of_layer) for of_layer in own_loads} == {B * S * 2}
        assert own_biases == biases
        assert worst_error([own[n] for n in gradients], list(gradients.values())) <= 1e-12


FOUR_LAYERS = MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2)


@pytest.mark.parametrize(("dp", "ep"), [(2, 2), (4, 2)])
def test_rows_to_experts_are_the_serial_choices_of_each_ranks_sequences_and_change_no_weight(dp, ep):
    tokens = np.random.default_rng(3).integers(0, FOUR_LAYERS.vocab_size, size=(8, 4))

    def program(comm):
        trainer = Trainer(
            Mesh(comm, dp=dp, ep=ep),
            Mixtral.random(FOUR_LAYERS, seed=1, dtype="float64", xp=np),
            AdamW(lr=LR),
            bias_rate=0.1,
        )
        before = trainer.full_weights()
        tables = trainer.rows_to_experts(tokens)
        same = all((before[name] == x).all() for name, x in trainer.full_weights().items())
        return tables, same, [sum(mixture.counted) for mixture in trainer.mixtures.of_layer.values()]

    serial, expected = Mixtral.random(FOUR_LAYERS, seed=1, dtype="float64", xp=np), []
    hidden, _ = serial.embedding.forward(tokens)
    for block in serial.blocks:
        hidden, cache = block.forward(hidden)
        chosen = next(part.chosen for part in cache["mlp"] if hasattr(part, "chosen")).reshape(dp, -1)
        expected.append([np.bincount(of_rank, minlength=4).tolist() for of_rank in chosen])
    for rank, (tables, same, counted) in enumerate(run(program, dp).results):
        group = slice(rank // ep * ep, rank // ep * ep + ep)  # ep: consecutive ranks of dp
        assert [np.asarray(table).tolist() for table in tables] == [of_layer[group] for of_layer in expected]
        assert same
        assert counted == 4 * [0]


@pytest.mark.parametrize(
    ("axes", "options", "rows", "said"),
    [
        ({"dp": 1, "tp": 2}, {}, 8, "tp=2, with zero=1"),
        ({"pp": 2}, {}, 8, "on pp=2, cp=1"),
        ({"dp": 2, "ep": 2}, {"zero": 3}, 8, "with zero=3"),
        ({"dp": 2, "ep": 2}, {}, 7, "tokens: 7 rows do not divide among 2 ranks of dp"),
    ],
)
def test_rows_to_experts_refuses_a_mesh_that_cuts_the_model_and_rows_that_do_not_divide(axes, options, rows, said):
    def program(comm):
        trainer = Trainer(
            Mesh(comm, **axes), Mixtral.random(FOUR_LAYERS, seed=1, dtype="float64", xp=np), AdamW(lr=LR), **options
        )
        with pytest.raises(ValueError, match=said):
            trainer.rows_to_experts(np.zeros((rows, 4), dtype=int))

    run(program, 2)
