"""A step on any mesh equals the serial model's: loss, norm, every gradient, new weights, and all copies to the bit.

`faults` compares to 1e-12 (losses of later steps 1e-10, weights 1e-8: AdamW magnifies what is nearly zero).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parlab import run
from parlab.nn.optimizer import AdamW
from parlab.pipeline import Costs, Schedule, dualpipe, interleaved_one_f_one_b, zb_auto, zb_v
from parlab.train import Mesh, Trainer
from parlab.zero import LossScale
from tests.train.models import LR, batches, case, drawn, faults, model, serial_steps

DATA = Path(__file__).parent.parent / "data"


@pytest.mark.parametrize(
    ("zero", "max_norm", "tied", "steps"),
    [(0, 0.5, True, 1), (1, None, False, 1), (2, 0.5, False, 1), (3, None, True, 5)],
)
def test_all_four_strategies_on_16_ranks_are_the_serial_model_for_1_or_5_steps(zero, max_norm, tied, steps):
    four = case(dp=2, pp=2, cp=2, tp=2, zero=zero, max_norm=max_norm, tied=tied, sequence_parallel=zero > 1)
    assert faults(four, steps) == set()


CASES = {
    "nothing, 7 tokens": case(S=7),
    "dp 4": case(dp=4, zero=2),
    "pp 4": case(pp=4, B=4),
    "cp 4": case(cp=4),
    "tp 4, one K/V head": case(tp=4, heads=1),
    "tp 4 with sequence parallelism": case(tp=4, sequence_parallel=True),
    "striped": case(cp=3, S=12, layout="striped"),
    "contiguous": case(cp=3, S=12, layout="contiguous"),
    "Ulysses of uneven heads": case(cp=3, S=12, attention="ulysses"),
    "Ulysses and tp": case(cp=2, tp=2, attention="ulysses", sequence_parallel=True),
    "all-gather": case(cp=2, dp=2, attention="allgather", layout="striped"),
    "six data ranks, tied, replicated": case(dp=3, cp=2, tp=2, tied=True, B=3, zero=0),
    "interleaved, zero 3": case(dp=2, pp=2, schedule=interleaved_one_f_one_b(2, 4, 2), zero=3),
    "zb_auto": case(pp=3, dp=2, schedule=zb_auto(3, 4, Costs(), 3), tied=True, zero=2),
    "both ends on one rank": case(pp=2, dp=2, schedule=zb_v(2, 2), tied=True, zero=3),
    "DualPipe, each stage on two ranks": case(pp=2, dp=2, schedule=dualpipe(2, 4), tied=True, zero=3),
    "PyTorch's file": case(pp=2, schedule=Schedule.from_csv(DATA / "pytorch_zb1p_2rank.csv"), layers=5, zero=2),
    "DualPipeV from a file": case(
        pp=4, B=10, layers=8, schedule=Schedule.from_csv(DATA / "pytorch_dualpipev_4rank_10mb.csv"), tied=True
    ),
    "recomputed": case(pp=2, tp=2, cp=2, recompute="full", sequence_parallel=True),
    "accumulated": case(dp=2, pp=2, zero=3, reduce="accumulate"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_the_serial_one(name):
    assert faults(CASES[name], 2) == set()


@pytest.mark.parametrize("seed", range(4))
def test_random_meshes_of_up_to_16_ranks_are_the_serial_model(seed):
    assert faults(drawn(seed), 2) == set()


@pytest.mark.parametrize("seed", [100, 101])
def test_random_meshes_are_the_serial_model_inside_the_array_standard(seed):
    assert faults(drawn(seed, ranks=2), library="strict") == set()


@pytest.mark.parametrize("seed", range(4, 8))
def test_random_meshes_with_uneven_targets_are_the_serial_model(seed):
    assert faults(drawn(seed)._replace(ignored=seed), 2) == set()


def test_random_meshes_with_uneven_targets_are_the_serial_model_inside_the_array_standard():
    assert faults(drawn(100, ranks=4)._replace(ignored=100), library="strict") == set()


@pytest.mark.parametrize("zero", [0, 3])
def test_float16_trains_with_a_loss_scale_that_is_divided_out_and_moves_alike_on_all_ranks(zero):
    start, text = model(dtype="float32"), batches(4, 8)
    right = serial_steps(model(), text)

    def program(comm):
        trainer = Trainer(
            Mesh(comm, dp=2, pp=2), start, AdamW(lr=LR), zero=zero, dtype="float16", loss_scale=LossScale(2.0**19)
        )
        return [trainer.step(*text[0]) for _ in range(6)], trainer.progress

    first, *others = run(program, 4).results
    assert all(repr(other) == repr(first) for other in others)  # a norm may be no number
    results, progress = first
    skipped = sum(result.skipped for result in results)
    assert 0 < skipped < 6
    moved = {"loss_scale": 2.0 ** (19 - skipped), "good_steps": 6 - skipped}
    assert progress == {"steps": 6 - skipped, "skipped": skipped, "samples": 6 * 4, **moved}
    assert abs(results[skipped].loss / right[0][0] - 1) < 1e-2
    assert abs(results[skipped].norm / right[0][1] - 1) < 2e-2


@pytest.mark.parametrize("zero", [0, 3])
def test_the_first_pieces_of_all_ranks_cover_each_weight_once(zero):
    start = model(tie_word_embeddings=True, num_key_value_heads=1)

    def program(comm):
        trainer = Trainer(Mesh(comm, dp=2, pp=2, cp=2, tp=2), start, AdamW(), zero=zero)
        return [piece for piece in trainer.pieces() if piece.first_copy]

    seen = {name: np.zeros(weight.shape, dtype=int) for name, weight in start.weights.items()}
    for piece in (piece for pieces in run(program, 16).results for piece in pieces):
        index = np.arange(np.prod(piece.shape)).reshape(piece.shape)
        if piece.axis is not None:
            index = np.take(index, range(piece.start, piece.stop), axis=piece.axis)
        places = index.reshape(-1)[piece.flat_start : piece.flat_start + piece.master.size]
        seen[piece.name].reshape(-1)[places] += 1
        assert np.array_equal(piece.master, start.weights[piece.name].reshape(-1)[places])
    assert all((times == 1).all() for times in seen.values())
