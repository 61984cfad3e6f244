"""One training step of a whole model under a schedule, to compare with the step of the serial model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from parlab.arrays import Array, namespace
from parlab.nn.llama import Decoder
from parlab.nn.stage import Gradients, Stage
from parlab.pipeline.execute import run_schedule
from parlab.pipeline.partition import partition
from parlab.pipeline.schedule import Schedule
from parlab.world import Timeline, run


class Step(NamedTuple):
    """The loss, the gradients by name, and the timeline of a step."""

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
) -> Step:
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
    return Step(loss, gradients, done.timeline)
