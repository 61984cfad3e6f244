"""Every room on a device: nothing leaves it that was not asked for, and the results are NumPy's.

No GPU is needed: `tests.device` stands in for one.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import array_api_strict
import numpy as np
import pytest

from parlab import per_rank, run
from parlab.arrays import namespace, on_host, to_numpy
from parlab.experts import ExpertParallel
from parlab.nn.attention import attention, attention_backward
from parlab.nn.cross_entropy import cross_entropy, number_of_targets
from parlab.nn.dense_attention import dense_attention, dense_attention_backward
from parlab.nn.embedding import embedding
from parlab.nn.mixtral import Mixtral
from parlab.nn.optimizer import AdamW
from parlab.nn.training import train
from parlab.pipeline import dualpipe, one_f_one_b, run_schedule, step_of_ranks, zb_h1
from parlab.sequence import (
    MEMORY_LEVELS,
    CheckpointedBlock,
    analyse_attention,
    shard,
    split_by_attention,
    split_by_work,
    split_equal,
    synchronise_gradients,
    unshard,
    weight_cut,
)
from parlab.tensor import ParallelLlama
from parlab.tensor.vocabulary import VocabParallelEmbedding, vocab_parallel_cross_entropy
from parlab.train import Mesh, Trainer
from parlab.views import wrong_gradients
from parlab.zero import LossScale
from tests.device import DEVICE, ImplicitConversionError, each_array, guarded, launches, on_device
from tests.libraries import CUPY, needs_gpu
from tests.nn.parity import assert_parity
from tests.pipeline.models import tanh_model
from tests.sequence.methods import pair
from tests.sequence.rings import both, draw_inputs
from tests.tensor import models as small
from tests.train import models as meshes
from tests.zero import models as replicas

Move = Callable[[Any], Any]  # puts a NumPy array where the program is to run
Program = Callable[[Move], Any]
WEIGHTS = ("w1", "w2", "w3")  # of an expert
_lines, _first = inspect.getsourcelines(number_of_targets)
# a look a rank, after its program; and the number of target tokens, which are inputs
FREE = "world/send_buffer.py", f"nn/cross_entropy.py:{_first + len(_lines) - 1}"


def moved(model: Any, move: Move) -> Any:
    return type(model)(model.config, {name: move(x) for name, x in model.weights.items()})


def model_of(move: Move, **changes: Any) -> Any:
    return moved(small.model(**changes), move)


def training_step(move: Move) -> Any:
    model, losses = model_of(move, rope_scaling={"type": "linear", "factor": 2.0}), []
    batch = tuple(map(move, small.text()))
    losses = train(model, [batch, batch], AdamW(lr=0.1), max_norm=0.5)
    return model.weights, model.logits(batch[0]), losses


def attentions(move: Move) -> Any:
    dout, q, k, v = map(move, draw_inputs(2, 6, 2, 9, 4))
    results = []
    for forward, backward in ((attention, attention_backward), (dense_attention, dense_attention_backward)):
        for causal in (False, True):
            out, lse = forward(q, k, v, causal=causal)
            results += out, lse, *backward(dout, q, k, v, out, lse, causal=causal)
    return results


def method(name: str, move: Move, size: int = 4, **how: Any) -> Any:
    inputs = [per_rank(shard(move(x), size)) for x in draw_inputs(1, 8, 4, 16, 2)]
    forward, backward = pair(name)
    done = run(both, size, *inputs, forward=forward, backward=backward, **how)
    return [unshard(x, axis=2) for x in zip(*done.results, strict=True)]


def memory(level: str, move: Move) -> Any:
    model = model_of(move)
    x, dy = map(move, np.random.default_rng(7).normal(size=(2, 1, 8, 16)))

    def program(comm: Any) -> Any:
        block = CheckpointedBlock(comm, model.blocks[0], level)
        y, kept = block.forward(x)
        return y, *block.backward(dy, kept)

    return run(program, 1).results


def mean_gradients(move: Move) -> Any:
    gradients = [{"a": [move(np.arange(3.0) + rank)]} for rank in range(2)]
    return run(synchronise_gradients, 2, per_rank(gradients)).results


def maps(move: Move) -> Any:
    weights = move(np.tril(np.random.default_rng(3).uniform(size=(2, 12, 12))))
    found = analyse_attention(weights, sentences=[5, 12])
    cut = weight_cut(weights, split_equal(12, 4))
    spans = [head.span for head in found.heads]
    starts = [chunk.start for chunk in split_by_attention(weights, 3)]
    starts += [chunk.start for chunk in split_by_work(move(np.arange(1.0, 9)), 3)]
    return found.crossing, found.importance, [np.asarray(x) for x in (cut, *spans, *starts)]


def tanh_pipeline(move: Move) -> Any:
    model, _, _, inputs, targets = tanh_model(4, 4)
    for stage in model:
        stage.weights = {name: move(x) for name, x in stage.weights.items()}
    arguments = list(map(move, inputs)), list(map(move, targets))
    return [gradients for _, gradients in run(run_schedule, 4, zb_h1(4, 4), model, *arguments).results]


def llama_pipeline(schedule: Any, move: Move) -> Any:
    tokens, targets = (move(np.tile(x, (2, 1))) for x in small.text())
    step = step_of_ranks(schedule, model_of(move, num_hidden_layers=4), tokens, targets)
    return step.gradients, np.asarray(step.loss)


def tensor_step(move: Move, **options: Any) -> Any:
    serial, (tokens, targets) = model_of(move), map(move, small.text())

    def program(comm: Any) -> Any:
        parallel = ParallelLlama.from_full(comm, serial, **options)
        _, gradients = parallel.loss_and_gradients(tokens, targets)
        gradients, norm = parallel.clip_gradients(gradients, 0.5)
        return gradients, np.asarray(norm)

    return run(program, 2).results


def tensor_logits(move: Move) -> Any:
    serial, (tokens, _) = model_of(move), map(move, small.text())
    return run(lambda comm: ParallelLlama.from_full(comm, serial).logits(tokens), 2).results


def zero(stage: int, move: Move, steps: int = 2, **options: Any) -> Any:
    start = moved(replicas.model(), move)
    text = [tuple(map(move, batch)) for batch in replicas.batches(2, steps)]
    done = run(lambda comm: replicas.train(comm, start, text, stage, **options).full_weights(), 2)
    return done.results


def mesh_step(move: Move, zero: int, **axes: int) -> Any:
    start = moved(meshes.model(), move)
    batch = tuple(map(move, meshes.batches(4, 4)[0]))

    def program(comm: Any) -> Any:
        schedule = one_f_one_b(axes.get("pp", 1), 2)
        trainer = Trainer(Mesh(comm, **axes), start, AdamW(lr=0.1), schedule=schedule, zero=zero, max_norm=0.5)
        result = trainer.step(*batch)
        return trainer.full_gradients(), trainer.full_weights(), [np.asarray(x) for x in (result.loss, result.norm)]

    return run(program, 4).results


def mixture(move: Move, size: int = 2, **options: Any) -> Any:
    draw = np.random.default_rng(5)
    sizes = {"gate": (8, 4)} | {f"experts.{e}.{w}": (6, 8) if w == "w2" else (8, 6) for e in range(4) for w in WEIGHTS}
    weights = {f"m.{name}.weight": move(draw.normal(size=shape)) for name, shape in sizes.items()}
    x, dy = (per_rank([move(draw.normal(size=(1, 5, 8))) for _ in range(size)]) for _ in range(2))

    def program(comm: Any, x: Any, dy: Any) -> Any:
        layer = ExpertParallel.from_full(comm, weights, "m", 4, 2, auxiliary=0.1, bias_rate=0.01, **options)
        y, cache = layer.forward(x)
        dx, gradients = layer.backward(dy, cache)
        return y, dx, gradients

    return run(program, size, x, dy).results


def mixtral_step(move: Move) -> Any:
    made = meshes.model(**meshes.EXPERTS, num_hidden_layers=2)
    start = Mixtral(made.config, {name: move(x) for name, x in made.weights.items()})
    batch = tuple(map(move, meshes.batches(4, 4)[0]))

    def program(comm: Any) -> Any:
        trainer = Trainer(Mesh(comm, dp=2, ep=2), start, AdamW(lr=0.1), auxiliary=0.1, bias_rate=0.01)
        trainer.step(*batch)
        return trainer.full_gradients(), trainer.full_weights(), np.asarray(trainer.biases)

    return run(program, 2).results


def pictures(move: Move) -> Any:
    x = move(np.ones(3))
    wrong_gradients({"x": x + 1}, {"x": x})
    return x


PROGRAMS: dict[str, tuple[Program, int | None]] = {  # what leaves the device in all; None: as much as it likes
    "nn: two steps of training": (training_step, 2 * 2),  # the loss and the norm
    "nn: attention": (attentions, 0),
    **{f"sequence: {name}": (partial(method, name), 0) for name in ("ring", "ulysses", "allgather", "tree")},
    "sequence: usp": (partial(method, "usp", ulysses=2, causal=True), 0),
    "sequence: double ring": (partial(method, "double_ring", ranks_per_node=2, causal=True), 0),
    "sequence: window": (partial(method, "window", window=5), 0),
    **{f"sequence: memory {level}": (partial(memory, level), int(level == "extreme")) for level in MEMORY_LEVELS},
    "sequence: gradients": (mean_gradients, 0),
    "sequence: maps and splits": (maps, None),
    "pipeline: zero bubble": (tanh_pipeline, 1),  # the loss
    "pipeline: 1F1B": (partial(llama_pipeline, one_f_one_b(2, 4)), 1),
    "pipeline: DualPipe": (partial(llama_pipeline, dualpipe(2, 4)), 2),  # two ranks have the last stage
    "tensor: a step": (tensor_step, 2 * 2),  # the loss and the norm, on each rank
    "tensor: a step, sequence parallel": (partial(tensor_step, sequence_parallel=True), 2 * 2),
    "tensor: logits": (tensor_logits, 0),
    # once the sums of the weights; a step's loss and norm
    **{f"zero: stage {stage}": (partial(zero, stage, max_norm=0.5), 2 + 2 * 2 * 2) for stage in range(4)},
    "zero: without clipping": (partial(zero, 3), 2 + 2 * 2),  # the loss
    "zero: mixed precision": (partial(zero, 2, dtype="float32", loss_scale=LossScale()), 2 + 2 * 2 * 2),
    # the sums of the weights; tokens and targets, before anything is launched; the norm and the mean loss; the loss
    # where it is made
    "train: dp and cp": (partial(mesh_step, zero=3, dp=2, cp=2), 4 * 6),
    "train: pp and tp": (partial(mesh_step, zero=1, pp=2, tp=2), 4 * 5 + 2),
    # each forward: its own loads for the plan, the plan, and the auxiliary loss's loads, own and of all; each backward:
    # the loads for the bias
    "experts: all-to-all": (mixture, 2 * 5),
    "experts: two levels": (partial(mixture, size=4, exchange="hierarchical", ranks_per_node=2), None),
    "experts: all-gather": (partial(mixture, exchange="all_gather"), None),
    "train: ep, with both balances": (mixtral_step, None),
    "views: what reads results": (pictures, None),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_leaves_the_device_unasked_and_results_equal_numpys_to_1e_12(name):
    program, allowed = PROGRAMS[name]
    expected = list(each_array(program(lambda x: x)))
    with guarded() as seen:
        found = list(each_array(program(on_device)))
    asked = [place for place in seen.explicit if not place.startswith(FREE)]
    assert allowed in (None, len(asked)), asked
    assert all(isinstance(x, np.ndarray) or x.device == DEVICE for x in found)
    assert any(not isinstance(x, np.ndarray) for x in found)
    assert_parity(found, expected, 1e-5 if "mixed" in name else 1e-12, floor=1e-3)


def on_cupy(x: np.ndarray) -> Any:
    return CUPY.asarray(np.ascontiguousarray(x) if x.ndim else x)


@needs_gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_a_gpu_results_equal_numpys_to_1e_12(name):
    program, _ = PROGRAMS[name]
    found, expected = (list(each_array(program(move))) for move in (on_cupy, lambda x: x))
    assert any(not isinstance(x, np.ndarray) for x in found)
    assert_parity(found, expected, 1e-5 if "mixed" in name else 1e-12, floor=1e-3)


def wrong_token(x: np.ndarray, value: int) -> np.ndarray:
    x = x.copy()
    x[1, 2] = value
    return x


@pytest.mark.parametrize("value", [-1, small.SIZES["vocab_size"]])
@pytest.mark.parametrize("which", ["tokens", "targets"])
def test_a_token_outside_the_vocabulary_is_named_when_the_loss_is_fetched(which, value):
    text = dict(zip(("tokens", "targets"), small.text(), strict=True))
    text[which] = wrong_token(text[which], value)
    with guarded() as seen, pytest.raises(ValueError, match=rf"{which} hold .*: the vocabulary has 0..18"):
        model_of(on_device).loss_and_gradients(*map(on_device, text.values()))
    assert len(seen.explicit) <= 3  # the loss, and then the tokens and the targets


@pytest.mark.parametrize("value", [-1, 19])
def test_what_is_looked_up_with_a_token_outside_the_vocabulary_is_nan_on_a_device(value):
    tokens, logits = on_device(wrong_token(small.text()[0], value)), on_device(np.zeros((2, 8, 19)))
    table = on_device(np.ones((19, 4)))
    embedded = run(lambda comm: VocabParallelEmbedding.from_full(comm, table).forward(tokens)[0], 1).results[0]
    losses = cross_entropy(logits, tokens), run(vocab_parallel_cross_entropy, 1, logits, tokens).results[0]
    for x in (embedding(tokens, table)[0], embedded, *(loss for loss, _ in losses)):
        assert np.all(np.isnan(to_numpy(x)))


# One large operation on a device, in place of many small ones


def attention_and_backward(heads: int) -> int:
    dout, q, k, v = map(on_device, draw_inputs(1, heads, 2, 200, 4))
    with launches() as number:
        out, lse = attention(q, k, v, causal=True)
        attention_backward(dout, q, k, v, out, lse, causal=True)
    return number()


def test_attention_of_8_heads_launches_as_many_operations_as_of_4():
    assert attention_and_backward(8) == attention_and_backward(4) < 150


def update_of(size: int) -> int:
    x = on_device(np.ones(size))
    with launches() as number:
        AdamW().update(x, x, x, x, step=1)
    return number()


def test_the_optimizer_launches_as_many_operations_for_200_000_numbers_as_for_10():
    assert update_of(200_000) == update_of(10) < 50


def test_only_numpys_arrays_lie_on_the_host():
    assert on_host(np.ones(2))
    assert not on_host(on_device(np.ones(2)))


# The guard itself: each way to look at a number is caught

LOOKS: dict[str, Callable[[Any], Any]] = {
    "float": lambda x: float(namespace(x).sum(x)),
    "int": lambda x: int(namespace(x).sum(x)),
    "complex": lambda x: complex(namespace(x).sum(x)),
    "if": lambda x: 1 if namespace(x).any(x > 0) else 0,
    "index": lambda x: range(namespace(x).argmax(x)),
    "iteration": lambda x: list(namespace(x).reshape(x, (-1,))),
    "in": lambda x: 1.0 in x,
    "asarray": np.asarray,
    "NumPy's functions": np.sum,
    "print": str,
    "f-string": lambda x: f"{x}",
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: namespace(x).nonzero(x),
    "another device": lambda x: x + namespace(x).ones(1, dtype=x.dtype),
    "another device, written": lambda x: operator.setitem(x, ..., namespace(x).ones(1, dtype=x.dtype)),
}


def refused() -> Any:
    return pytest.raises((ImplicitConversionError, RuntimeError, ValueError), match=r"__ at |device|disabled")


@pytest.mark.parametrize("look", LOOKS)
def test_each_way_to_look_at_numbers_is_refused_on_the_device(look):
    x = on_device(np.ones(3))
    with suppress(ImplicitConversionError), guarded(), refused():
        LOOKS[look](x)


def test_a_look_whose_error_is_swallowed_is_told_at_the_end():
    x = on_device(np.ones(3))
    with pytest.raises(ImplicitConversionError, match="__float__ at "), guarded(), suppress(ImplicitConversionError):
        LOOKS["float"](x)


def test_a_look_on_a_rank_is_refused_as_well():
    x = on_device(np.ones(3))
    with suppress(ImplicitConversionError), guarded(), refused():
        run(lambda comm: LOOKS["if"](x), 2)


def test_arrays_on_the_host_may_be_looked_at():
    with guarded() as seen:
        assert float(array_api_strict.sum(array_api_strict.ones(3))) == 3
    assert not seen.explicit
