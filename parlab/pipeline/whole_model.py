"""A whole model in a pipeline: a training step under a schedule, and the bytes that each stage keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from parlab.arrays import Array, namespace, nbytes, owning_buffer
from parlab.nn.counting import arrays_in
from parlab.nn.llama import Decoder
from parlab.nn.optimizer import AdamW
from parlab.nn.stage import Gradients, Stage
from parlab.pipeline.execute import run_schedule
from parlab.pipeline.partition import partition
from parlab.pipeline.schedule import Schedule
from parlab.world import Timeline, run


class StepRun(NamedTuple):
    """A training step that ran: its loss, its gradients by name, and its timeline."""

    loss: float
    gradients: Gradients
    timeline: Timeline


def step_of_ranks(
    schedule: Schedule,
    model: Decoder,
    tokens: Array,
    targets: Array,
    change: Callable[[Stage], Any] | None = None,
    **options: Any,
) -> StepRun:
    """Loss and gradients of the whole batch, by ranks that each run their part of `schedule`.

    Args:
        model: cut evenly into the schedule's stages; its weights stay as they are.
        tokens, targets: `[B, S]`, cut into the schedule's microbatches, which divide B.
        change: is given each stage, and returns what takes its place.
        options: of `run_schedule` and of `run`, such as `costs` and `cluster`.

    Raises:
        ValueError: microbatches that do not divide B, fewer layers than stages, or see `run_schedule`.

    >>> from parlab import arrays
    >>> from parlab.nn.llama import Llama
    >>> from parlab.nn.config import LlamaConfig
    >>> from parlab.pipeline import one_f_one_b
    >>> config = LlamaConfig(vocab_size=5, hidden_size=4, intermediate_size=8, num_hidden_layers=2,
    ...                      num_attention_heads=1)
    >>> model, tokens = Llama.random(config, dtype="float64"), arrays.generator(1).integers(5, size=(4, 3))
    >>> step = step_of_ranks(one_f_one_b(p=2, m=4), model, tokens, tokens)
    >>> abs(step.loss - model.loss_and_gradients(tokens, tokens)[0]) < 1e-12
    True
    """
    m, (B, S) = schedule.num_microbatches, tokens.shape
    if B % m:
        raise ValueError(f"tokens: {B} sequences cannot be cut into {m} microbatches: B must be a multiple of {m}")
    stages: list[Any] = model.stages(partition(model.config.num_hidden_layers, schedule.num_stages))
    stages = [change(stage) for stage in stages] if change else stages
    cuts = [slice(start, start + B // m) for start in range(0, B, B // m)]
    weight = next(iter(model.weights.values()))
    passed = namespace(weight).ones((1, S, model.config.hidden_size), dtype=weight.dtype, device=weight.device)
    microbatches = [tokens[cut, :] for cut in cuts], [targets[cut, :] for cut in cuts]
    done = run(run_schedule, schedule.num_ranks, schedule, stages, *microbatches, like=passed, **options)
    loss = sum(part for part, _ in done.results if part is not None)
    gradients = {name: gradient for _, own in done.results for name, gradient in own.items()}
    return StepRun(loss, gradients, done.timeline)


def losses_of_steps(
    schedule: Schedule,
    model: Decoder,
    batches: Iterable[tuple[Array, Array]],
    optimizer: AdamW,
    change: Callable[[Stage], Any] | None = None,
) -> list[float]:
    """Train `model`, whose weights change, by a `step_of_ranks` and a step of the optimizer for each batch.

    Args:
        batches: tokens and targets, `[B, S]` each; see `step_of_ranks`.
        change: is given each stage, and returns what takes its place.

    Returns:
        The loss of each batch, before its step.

    Raises:
        ValueError: see `step_of_ranks`.

    >>> from parlab import arrays
    >>> from parlab.nn.llama import Llama
    >>> from parlab.nn.config import LlamaConfig
    >>> from parlab.pipeline import one_f_one_b
    >>> config = LlamaConfig(vocab_size=5, hidden_size=4, intermediate_size=8, num_hidden_layers=2,
    ...                      num_attention_heads=1)
    >>> model, tokens = Llama.random(config, dtype="float64"), arrays.generator(1).integers(5, size=(4, 3))
    >>> losses = losses_of_steps(one_f_one_b(p=2, m=4), model, [(tokens, tokens)] * 20, AdamW(lr=0.1))
    >>> losses[-1] < losses[0]
    True
    """
    losses = []
    for tokens, targets in batches:
        done = step_of_ranks(schedule, model, tokens, targets, change)
        optimizer.step(model.weights, done.gradients)
        losses.append(done.loss)
    return losses


class KeptBytes(NamedTuple):
    """Bytes that a microbatch keeps, as `ScheduleTimeline.kept_bytes` takes them: one number a stage.

    Attributes:
        activation: from its F to its I or B (M_B).
        pending: from its I to its W (M_W). A weight gradient needs the inputs of the matrices and the gradients of
            their outputs, so that this may be more than `activation`.
    """

    activation: list[int]
    pending: list[int]


def kept_bytes(model: Decoder, tokens: Array, targets: Array, num_stages: int) -> KeptBytes:
    """Count what one microbatch keeps on each stage of a model that is cut evenly.

    Args:
        tokens, targets: `[B, S]`, one microbatch.

    Raises:
        ValueError: fewer layers than stages.

    >>> from parlab import arrays
    >>> from parlab.nn.llama import Llama
    >>> from parlab.nn.config import LlamaConfig
    >>> config = LlamaConfig(vocab_size=5, hidden_size=4, intermediate_size=8, num_hidden_layers=2,
    ...                      num_attention_heads=1)
    >>> model, tokens = Llama.random(config, dtype="float64"), arrays.generator(1).integers(5, size=(1, 3))
    >>> len(kept_bytes(model, tokens, tokens, num_stages=2).activation)
    2
    """
    stages: list[Any] = model.stages(partition(model.config.num_hidden_layers, num_stages))
    once, again = (_caches_and_pendings(stages, tokens, targets) for _ in range(2))
    shared = _buffers(once).keys() & _buffers(again).keys()  # weights, tables, tokens
    activation, pending = (
        [sum(nbytes(buffer) for key, buffer in _buffers(cache).items() if key not in shared) for cache in of_stages]
        for of_stages in once
    )
    return KeptBytes(activation, pending)


def _caches_and_pendings(stages: list[Any], x: Array, targets: Array) -> tuple[list[Any], list[Any]]:
    """For each stage, what one microbatch leaves after its F and after its I."""
    caches: list[Any] = []
    for stage in stages[:-1]:
        x, cache = stage.forward(x)
        caches.append(cache)
    caches.append(stages[-1].forward(x, targets)[1])
    dy, pendings = 1.0, []
    for stage, cache in zip(reversed(stages), reversed(caches), strict=True):
        dy, pending = stage.backward_input(dy, cache)
        pendings.append(pending)
    return caches, pendings[::-1]


def _buffers(cache: Any) -> dict[int, Any]:
    """The memory under the arrays of a cache, each once."""
    return {id(buffer): buffer for buffer in map(owning_buffer, arrays_in(cache))}
