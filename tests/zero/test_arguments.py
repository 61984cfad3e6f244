"""Bad input, one row a rule: refused before any work, with the argument's name, its value and what would be right."""

from __future__ import annotations

import math
import re

import array_api_strict
import numpy as np
import pytest

from parlab import run
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.world import Link
from parlab.zero import (
    LossScale,
    Offload,
    ShardMap,
    StateBytes,
    Zero,
    elements_sent,
    forward_backward,
    model_state_bytes,
    shard_range,
    state_bytes_held,
    step_waiting,
    tokens_to_hide_a_gather,
    train_replica,
    zero_1,
)
from parlab.zero import replica_of as replica_of_model
from parlab.zero.pieces import full_gradients
from tests.zero.models import batches, model, replica_of, toy

LINK = Link(1e-6, 1e9)
TOKENS, TARGETS = batches(1, 1)[0]


def zero(*, params=None, stage=1, optimizer=None, **options):
    """A `Zero` on two ranks."""

    def program(comm):
        Zero(comm, toy(0) if params is None else params, stage, optimizer or AdamW(), **options)

    return lambda: run(program, 2)


def plain(**options):
    return lambda: run(lambda comm: Zero(comm, toy(0), 0, AdamW(), **options), 2)


def used(use):
    """`use(replica)` on two ranks."""
    return lambda: run(lambda comm: use(replica_of(comm, toy(0), 3)), 2)


def trained(tokens=TOKENS, targets=TARGETS, replica=None, of=None, **options):
    def program(comm):
        mine = Llama(model().config, dict(model().weights))
        made = Zero(comm, mine.weights, 1, AdamW(), **{"blocks": mine.weight_blocks, **options})
        forward_backward(replica or made, of or mine, tokens, targets)

    return lambda: run(program, 2)


def trained_on(batches):
    def program(comm):
        mine = Llama(model().config, dict(model().weights))
        train_replica(Zero(comm, mine.weights, 1, AdamW(), blocks=mine.weight_blocks), mine, batches)

    return lambda: run(program, 2)


def complete(replica):
    for name, gradient in toy(1).items():
        replica.add_gradients(name, {name: gradient})
    return replica


def too_often(replica):
    for _ in range(2):
        replica.add_gradients("a", {"a": np.ones(5)})


MIXED_DTYPES = {"a": np.ones(2), "b": np.ones(2, np.float32)}
STRICT, NARROW = {"w": array_api_strict.ones(2)}, {"w": np.ones(2, np.float32)}
DONE = run(lambda comm: None, 2).timeline

FLAT = np.zeros(4)
ANOTHERS = "replica: make it of this model: Zero(comm, model.weights, ..., blocks=model.weight_blocks)"
ROWS = [  # a call, and the words that its error must contain
    # shards
    (lambda: shard_range(-1, 0, 1), "total=-1: must be a whole number, at least 0"),
    (lambda: shard_range(5, 0, 0), "size=0: must be a whole number, at least 1"),
    (lambda: shard_range(5, 3, 3), "rank=3: the ranks of this group are 0 to 2"),
    (lambda: ShardMap([0, 2], 2), "owners[1]=2: the ranks of this group are 0 to 1"),
    (lambda: ShardMap(3, 2), "owners=3: a list of whole numbers is needed"),
    (lambda: ShardMap([0], 1).owner(1), "block=1: there are 1 blocks, from 0"),
    # costs
    (lambda: model_state_bytes(-1, 4, 0), "num_params=-1: must be a number, at least 0 and finite"),
    (lambda: model_state_bytes(1, 0, 0), "ranks=0: must be a whole number, at least 1"),
    (lambda: model_state_bytes(1, 4, 4), "stage=4: the stages are 0, 1, 2 and 3"),
    (lambda: elements_sent(-1, 4, 0), "num_params=-1: must be a number, at least 0 and finite"),
    (lambda: elements_sent(1, 0, 0), "ranks=0: must be a whole number, at least 1"),
    (lambda: elements_sent(1, 2, 0, microbatches=0), "microbatches=0: must be a whole number, at least 1"),
    (lambda: elements_sent(1, 2, 4), "stage=4: the stages are 0, 1, 2 and 3"),
    (lambda: model_state_bytes(1, 4, 0, state=(2, 2, 12)), "state=(2, 2, 12): must be a StateBytes"),
    (lambda: model_state_bytes(1, 4, 0, state=StateBytes(weight=-2)), "weight=-2: must be a number"),
    (lambda: tokens_to_hide_a_gather(0, 1, 1), "flops=0: must be a number greater than 0"),
    (lambda: tokens_to_hide_a_gather(1, 1, 0), "ranks=0: must be a whole number, at least 1"),
    (lambda: step_waiting(0, -1, 1, 1, 1), "forward=-1: "),
    (lambda: step_waiting(4, 1, 1, 1, 1), "stage=4: the stages are 0, 1, 2 and 3"),
    # the step on a flat array
    (lambda: zero_1(None, [1.0], FLAT, {}, len), "weights=[1.0]: one flat array is needed"),
    (lambda: zero_1(None, FLAT, FLAT[:, None], {}, len), "gradient=array([[0.],"),
    (lambda: zero_1(None, FLAT, FLAT, [], len), "state=[]: must be a dict"),
    (lambda: zero_1(None, FLAT, FLAT, {}, 5), "update=5: a function is needed"),
    # precision and offload
    (lambda: LossScale(math.inf), "value=inf: must be a number greater than 0 and finite"),
    (lambda: LossScale(growth=0.5), "growth=0.5: must be a number, at least 1 and finite"),
    (lambda: LossScale(backoff=1), "backoff=1: must be a number, at least 0 and less than 1"),
    (lambda: LossScale(backoff=0), "backoff=0: must be a number greater than 0"),
    (lambda: Offload(1e9, 1e9), "link=1000000000.0: must be a Link"),
    (lambda: Offload(LINK, 1e9).seconds(-1, 0), "gradient=-1: must be a whole number, at least 0"),
    (lambda: Offload(LINK, 1e9).seconds(0, -1), "state=-1: must be a whole number, at least 0"),
    # replicas
    (zero(params={}), "params={}: arrays by name are needed, at least one"),
    (
        zero(params={"w": np.ones(2, int)}),
        "params['w'] is int64 of shape (2,): arrays of one floating dtype are needed",
    ),
    (zero(params=MIXED_DTYPES), "params['b'] is float32 of shape (2,): arrays of one floating dtype are needed"),
    (zero(stage=4), "stage=4: the stages are 0, 1, 2 and 3"),
    (zero(optimizer="adam"), "optimizer='adam': must be an AdamW"),
    (zero(blocks={"a": "abc"}), "blocks={'a': 'abc'}: the names of each block's weights are needed, by block"),
    (zero(blocks={"x": ("a",)}), "blocks: each weight must be in one block, and no block empty; look at ['b'"),
    (zero(blocks={"x": ("a", "b", "c", "a")}), "blocks: each weight must be in one block, and no block empty"),
    (zero(blocks={"x": ("a", "b", "c", "d")}), "no block empty; look at ['d']"),
    (zero(blocks={"x": ("a", "b", "c"), "y": ()}), "no block empty; look at ['y']"),
    (zero(dtype="int8"), "dtype='int8': float64, float32 or, where array_api_compat.numpy has it, float16 is needed"),
    (
        zero(params=STRICT, dtype="float16"),
        "dtype='float16': float64, float32 or, where array_api_strict has it, float",
    ),
    (zero(params=NARROW, dtype="float64"), "dtype='float64': params are float32, which is narrower"),
    (zero(loss_scale=1024), "loss_scale=1024: must be a LossScale"),
    (zero(max_norm=0), "max_norm=0: must be a number greater than 0"),
    (zero(microbatches=0), "microbatches=0: must be a whole number"),
    (zero(ranks_per_node=3), "ranks_per_node=3: must divide the 2 ranks: use one of [1, 2]"),
    (zero(offload=True), "offload=True: must be an Offload"),
    (zero(model_parallel="half"), "model_parallel='half': must be a ModelParallel"),
    (plain(bucket_bytes=0), "bucket_bytes=0: must be a whole number, at least 1"),
    (used(lambda r: r.weights("d").__enter__()), "block='d': the blocks are a, b, c"),
    (used(lambda r: (r.begin(["b"]), r.weights("a").__enter__())), "block='a': opened where the order given for this"),
    (used(lambda r: r.add_gradients("d", {})), "block='d': the blocks are a, b, c"),
    (used(lambda r: r.add_gradients("a", None)), "gradients=None: block a needs one for each of a"),
    (used(lambda r: r.add_gradients("a", toy(0))), "gradients=['a', 'b', 'c']: block a needs one for each of a"),
    (
        used(lambda r: r.add_gradients("a", {"a": np.ones(4)})),
        "gradients['a'] is float64 of shape (4,): a floating arr",
    ),
    (
        used(lambda r: r.add_gradients("a", {"a": np.ones(5, complex)})),
        "gradients['a'] is complex128 of shape (5,): a ",
    ),
    (
        used(lambda r: r.add_gradients("a", {"a": [1.0] * 5})),
        "gradients['a'] is a list: a floating array (5,) is neede",
    ),
    (used(too_often), "block='a': gradients of all microbatches, 1, have come: call step() first"),
    (used(lambda r: complete(r).step(lr=-1)), "lr=-1: must be a number, at least 0 and finite"),
    (
        used(lambda r: complete(r).step() and full_gradients(r)),
        "full_gradients(): a whole replica frees its gradients",
    ),
    (used(lambda r: r.step()), "block a: gradients of 0 microbatches have come, and a step needs 1"),
    # training
    (lambda: run(lambda comm: replica_of_model(comm, model(), 4, AdamW()), 2), "stage=4: the stages are 0, 1, 2 and 3"),
    (trained(replica=3), "replica=3: must be a Zero"),
    (trained(of=model()), ANOTHERS),
    (trained(blocks=None), ANOTHERS),
    (trained(of="llama"), "model='llama': must be a Decoder"),
    (
        trained(tokens=TOKENS[:0]),
        "tokens is int64 of shape (0, 4): whole numbers [batch, sequence] are needed, on every",
    ),
    (trained(tokens=TOKENS * 1.0), "tokens is float64 of shape (1, 4): whole numbers [batch, sequence]"),
    (trained(tokens=TOKENS + 100), "tokens hold 10"),
    (trained(targets=[1, 2]), "targets is a list: whole numbers [batch, sequence] are needed"),
    (trained(targets=TARGETS * 0 - 100), "targets hold -100, the ignored label: the mean over ranks would"),
    (trained(targets=TARGETS[:, :3]), "targets have shape (1, 3), logits (1, 4, 18): one target a token"),
    (trained_on(3), "batches=3: must be an Iterable"),
    (trained_on([1]), "batches: batch 0 is 1; a pair of tokens and targets is needed"),
    (trained_on(batches(5, 1)), "batches: 5 rows do not divide among 2 ranks"),
    # accounting
    (lambda: state_bytes_held(DONE.held(0), 0), "timeline=[]: must be a Timeline"),
    (lambda: state_bytes_held(DONE, 2), "rank=2: the timeline has ranks 0 to 1"),
]


@pytest.mark.parametrize(("call", "message"), ROWS, ids=[message.partition(":")[0] for _, message in ROWS])
def test_bad_input_is_a_value_error_that_says_what_would_be_right(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_numpy_numbers_are_as_good_as_pythons():
    options = {"microbatches": np.int64(1), "max_norm": np.float32(1)}
    zero(stage=np.int64(2), ranks_per_node=np.int64(1), **options)()
    assert shard_range(np.int64(10), np.int64(1), np.int64(3)) == range(4, 7)


def test_a_dead_end_before_any_work_leaves_the_weights_alone():
    params = toy(0)
    arrays = dict(params)
    with pytest.raises(ValueError, match="max_norm"):
        zero(params=params, stage=3, max_norm=-1)()
    assert all(params[name] is arrays[name] for name in arrays)
