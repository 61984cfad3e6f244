"""Bad input: refused before any message, with the axis or argument, its value and what would be right."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from parlab import run
from parlab.nn.llama import Llama
from parlab.nn.mixtral import Mixtral, MixtralConfig
from parlab.nn.optimizer import AdamW
from parlab.pipeline import Action, Schedule, interleaved_one_f_one_b, one_f_one_b
from parlab.train import Mesh, Samples, Trainer, bytes_by_strategy, read_index, save
from parlab.world import MismatchError
from tests.train.models import SIZES, batches, model

ONE, EIGHT = np.zeros((1, 8), dtype=int), np.zeros((8, 8), dtype=int)
EIGHT_STAGES = interleaved_one_f_one_b(4, 4, 2)
FIVE = MixtralConfig(**SIZES, num_local_experts=5, num_experts_per_tok=2)


def mesh(ranks, **axes):
    return lambda: run(lambda comm: Mesh(comm, **axes), ranks)


def made(sizes=None, start=None, on=None, optimizer=None, ep=1, **options):
    """A trainer on the mesh of `sizes`."""
    sizes = sizes or {}

    def program(comm):
        Trainer(on or Mesh(comm, **sizes, ep=ep), start or model(), optimizer or AdamW(), **options)

    return lambda: run(program, int(np.prod(list(sizes.values()) or [1])))


def step(sizes, tokens, targets=None, lr=None, **options):
    def program(comm):
        trainer = Trainer(Mesh(comm, **sizes), model(), AdamW(), **options)
        trainer.step(tokens, tokens if targets is None else targets, lr)

    return lambda: run(program, int(np.prod(list(sizes.values()) or [1])))


def saved(folder, **options):
    return lambda: run(lambda comm: save(Trainer(Mesh(comm), model(), AdamW()), folder, **options), 1)


ROWS = [  # a call, and the words that its error must contain
    (mesh(2, dp=0), "dp=0: must be a whole number, at least 1"),
    (mesh(8, dp=2, pp=2), "dp=2 · pp=2 · cp=1 · tp=1 makes 4 ranks, and there are 8: use dp=4 or pp=4 or cp=2"),
    (lambda: Mesh(8, dp=8), "comm=8: must be a Comm"),
    (mesh(2, dp=2, ep=4), "ep=4: it must divide dp · cp = 2: use one of 1, 2"),
    (mesh(2, dp=2, ep=0), "ep=0: must be a whole number, at least 1"),
    (made({"dp": 2}, ep=2), "ep=2: the model has no experts; use ep=1, or a Mixtral"),
    (made({"dp": 2}, ep=2, start=Mixtral.random(FIVE)), "ep=2: num_local_experts 5 do not divide among 2 ranks"),
    (made(bias_rate=0.1), "bias_rate=0.1: the model has no experts to balance"),
    (made(on="mesh"), "mesh='mesh': must be a Mesh"),
    (made(start="llama"), "model='llama': must be a Llama"),
    (made(optimizer="adam"), "optimizer='adam': must be an AdamW"),
    (made({"tp": 3}), "use a multiple of 3; or a tp that divides 4 heads and 8 columns"),
    (made(schedule="1f1b"), "schedule='1f1b': must be a Schedule"),
    (made({"pp": 2}, schedule=one_f_one_b(4, 4)), "pp=2: schedule has 4 ranks, use pp=4"),
    (made({"pp": 4}, schedule=EIGHT_STAGES), "pp=4: schedule has 8 stages, and num_hidden_layers is 4: use at most 4"),
    (made({"pp": 2}, schedule=Schedule([[Action("B", 0, 0)], [Action("F", 1, 0), Action("B", 1, 0)]])), "0F0"),
    (made(zero=4), "zero=4: the stages are 0, 1, 2 and 3"),
    (made(attention="tree"), "attention='tree': use one of ring, ulysses, allgather"),
    (made(layout="dealt"), "layout='dealt': use one of contiguous, zigzag, striped"),
    (made(attention="ulysses", layout="zigzag"), "layout='zigzag': attention='ulysses' takes contiguous shards; leave"),
    (made({"cp": 4, "tp": 2}, attention="ulysses"), "'ulysses' deals out heads, and tp=2 leaves 2; use cp=2"),
    (made(sequence_parallel="no"), "sequence_parallel='no': must be True or False"),
    (made(recompute="selective"), "recompute='selective': use one of none, full"),
    (made(reduce="now"), "reduce='now': use one of accumulate, each"),
    (made(reduce="each"), "reduce='each' at zero=1: its gradients are whole, and reduced once; use zero=2 or 3"),
    (made(loss_scale=8), "loss_scale=8: must be a LossScale"),
    (step({}, [[1]]), "tokens=[[1]]: an array [batch, sequence] of whole numbers is needed"),
    (step({}, ONE + 17), "tokens hold 17..17: the vocabulary has 0..16"),
    (step({}, ONE, ONE - 1), "targets hold -1..-1: the vocabulary has 0..16"),
    (step({}, ONE, ONE - 100), "targets are all -100, the ignored label: a mean needs at least one"),
    (step({}, ONE, EIGHT), "targets have shape (8, 8), tokens (1, 8): give one to each"),
    (step({}, ONE, lr=-1), "lr=-1: must be a number, at least 0 and finite"),
    (step({"dp": 3}, EIGHT), "dp=3: 8 rows do not divide among 3 replicas of 1 microbatches: use a multiple of 3"),
    (
        step({"dp": 2, "pp": 2}, EIGHT, schedule=one_f_one_b(2, 3)),
        "2 replicas of 3 microbatches: use a multiple of 6, or a number of microbatches that divides 4",
    ),
    (
        step({"cp": 3}, EIGHT),
        "sequence length 8 does not divide into 3 shards: use a multiple of 3 (zigzag needs 6",
    ),
    (
        step({"cp": 4, "tp": 4}, EIGHT, sequence_parallel=True),
        "tp=4: sequence length 2 (of 8, cp=4) does not divide among 4 ranks: use a multiple of 4, or sequence_parallel",
    ),
    *[(step({}, x), "tokens=") for x in (None, ONE + 0.5, ONE[0], ONE[:0])],
    (lambda: bytes_by_strategy(None), "timeline=None: must be a Timeline"),
    (lambda: save(None, "folder"), "trainer=None: must be a Trainer"),
    (lambda: read_index(3), "folder=3: must be the path of a folder"),
    (lambda: read_index(__file__), "test_arguments.py': it is a file; use a folder"),
    (saved("folder", notes=3), "notes=3: must be a Mapping"),
    (lambda: Samples(np.arange(9.0), 2), "tokens=array([0., 1., 2., 3., 4., 5., 6., 7., 8.]): an array [N] of"),
    (lambda: Samples(np.arange(9), 2, -1), "seed=-1: must be a whole number, at least 0"),
]


@pytest.mark.parametrize(("call", "message"), ROWS, ids=[message.partition(":")[0] for _, message in ROWS])
def test_bad_input_is_refused_with_what_would_be_right(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_gradients_before_the_first_step_are_refused():
    with pytest.raises(ValueError, match=re.escape("full_gradients(): there is no last step; call step() first")):
        run(lambda comm: Trainer(Mesh(comm), model(), AdamW()).full_gradients(), 1)


def test_a_refused_batch_sends_nothing_and_leaves_the_trainer_as_it_was():
    start, (good,) = model(), batches(4, 8)

    def program(comm):
        mesh = Mesh(comm, dp=2, pp=2)
        trainer = Trainer(mesh, start, AdamW())
        with pytest.raises(ValueError, match="dp=2"):
            trainer.step(ONE, ONE)
        return trainer.step(*good)

    loss = Llama(start.config, start.weights).loss_and_gradients(*good)[0]
    assert all(abs(result.loss - loss) < 1e-12 for result in run(program, 4).results)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (lambda comm: Trainer(Mesh(comm, dp=2), model(), AdamW()).step(EIGHT + comm.rank, EIGHT), "tokens and targets"),
        (lambda comm: Trainer(Mesh(comm, pp=2), model(), AdamW()).step(EIGHT, EIGHT + comm.rank), "tokens and targets"),
        (lambda comm: Mesh(comm, dp=2) if comm.rank else Mesh(comm, tp=2), "another rank another mesh"),
        (
            lambda comm: Trainer(Mesh(comm, dp=2), Llama.random(model().config, seed=comm.rank), AdamW()),
            "model or optimizer differs",
        ),
        (lambda comm: Trainer(Mesh(comm, dp=2), model(), AdamW(lr=0.1 + comm.rank)), "model or optimizer differs"),
    ],
    ids=["tokens", "targets", "mesh", "model", "optimizer"],
)
def test_a_batch_a_mesh_a_model_or_an_optimizer_of_each_ranks_own_is_a_mismatch(program, said):
    with pytest.raises(MismatchError, match=said):
        run(program, 2)


@pytest.mark.parametrize("sizes", [{}, {"dp": 2}, {"pp": 2}])
def test_to_compare_the_batch_sends_nothing_and_takes_no_time(sizes):
    def program(comm, samples):
        trainer = Trainer(Mesh(comm, **sizes), start, AdamW())
        trainer.samples = samples  # the first batch, or another
        trainer.step(EIGHT, EIGHT)

    start, ranks = model(), math.prod(sizes.values())
    assert run(program, ranks, 0).timeline.spans == run(program, ranks, 8).timeline.spans
