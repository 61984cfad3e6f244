"""A decoder's forward and backward, block by block: weights are opened before use, gradients handed over after it.

The loop is the same for every stage of ZeRO. They differ in `weights` and `add_gradients`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from parlab.arguments import instance
from parlab.arrays import Array, is_array, namespace
from parlab.nn.counting import arrays_in
from parlab.nn.cross_entropy import IGNORED, loss_to_host, number_of_targets
from parlab.nn.formulas import flops_by_block
from parlab.nn.llama import Decoder
from parlab.nn.optimizer import AdamW
from parlab.nn.stage import Gradients, add_gradients
from parlab.world import Comm
from parlab.zero.arguments import kind_of
from parlab.zero.zero import Zero

ACTIVATIONS = "activations"  # a name of memory


def replica_of(comm: Comm, model: Decoder, stage: int, optimizer: AdamW, **options: Any) -> Zero:
    """A `Zero` that takes over the weights of `model`, in its blocks.

    Args:
        options: see `Options`.

    Raises:
        ValueError: no model, or an argument that `Zero` refuses.
    """
    instance("model", model, Decoder)
    return Zero(comm, model.weights, stage, optimizer, **{"blocks": model.weight_blocks, **options})


def train_replica(replica: Zero, model: Decoder, batches: Iterable[tuple[Array, Array]]) -> list[float]:
    """Train on this rank's rows of each batch, and return this rank's mean loss of each.

    Args:
        replica: of `model`, from `replica_of`.
        batches: tokens and targets, `[B, S]` each, of all ranks together; a step after as many as its microbatches.

    Raises:
        ValueError: B does not divide by the number of ranks, or `forward_backward` refuses a batch.
    """
    instance("replica", replica, Zero)
    instance("model", model, Decoder)
    instance("batches", batches, Iterable)
    comm, losses = replica.comm, []
    for number, batch in enumerate(batches, start=1):
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise ValueError(f"batches: batch {number - 1} is {batch!r:.60}; a pair of tokens and targets is needed")
        tokens, targets = batch
        _check_batch(tokens, targets)
        if tokens.shape[0] % comm.size:
            raise ValueError(f"batches: {tokens.shape[0]} rows do not divide among {comm.size} ranks")
        rows = tokens.shape[0] // comm.size
        own = slice(rows * comm.rank, rows * (comm.rank + 1))
        losses.append(forward_backward(replica, model, tokens[own, :], targets[own, :]))
        if number % replica.options.microbatches == 0:
            replica.step()
    replica.finish()
    return losses


def forward_backward(replica: Zero, model: Decoder, tokens: Array, targets: Array) -> float:
    """Return the mean loss of this rank's batch, and add its scaled gradients to `replica`.

    Args:
        replica: made of `model.weights` and `model.weight_blocks`.
        model: whose weights it took over.
        tokens: `[B, S]`, this rank's.
        targets: `[B, S]`.

    Raises:
        ValueError: tokens or targets of another shape or dtype, outside the vocabulary, or none; or a replica that was
            not made of this model's weights and blocks.
    """
    instance("replica", replica, Zero)
    instance("model", model, Decoder)
    _check_batch(tokens, targets)
    comm, blocks = replica.comm, model.weight_blocks
    if model.weights is not replica.params or replica.block_names != tuple(blocks):
        raise ValueError("replica: make it of this model: Zero(comm, model.weights, ..., blocks=model.weight_blocks)")
    stages = dict(zip(blocks, model.chain.stages, strict=True))
    block_of = {name: block for block, names in blocks.items() for name in names}
    # The blocks that a stage reads: its own, and for the head of a tied model the embedding's
    reads = {block: dict.fromkeys(block_of[name] for name in stage.weight_names) for block, stage in stages.items()}
    flops = flops_by_block(model.config, *tokens.shape)
    beside_x = {list(stages)[-1]: (targets,)}  # the last stage, which computes the loss, takes the targets too

    with replica.guard.overflow_expected():
        x = tokens
        caches: dict[str, Any] = {}
        for block, stage in stages.items():
            with open_blocks(replica, reads[block]), comm.compute(f"forward {block}", flops=flops[block].forward):
                x, caches[block] = stage.forward(x, *beside_x.get(block, ()))
            comm.hold(ACTIVATIONS, *_activations(caches[block]))
        loss = x  # the last stage's output

        dy: Any = replica.loss_scale
        carried: Gradients = {}  # of weights whose own block is still to come: the head's share of a tied table
        for block, stage in reversed(stages.items()):
            backward = flops[block].backward_input + flops[block].backward_weight
            with open_blocks(replica, reads[block]), comm.compute(f"backward {block}", flops=backward):
                dy, gradients = stage.backward(dy, caches.pop(block))
            gradients = add_gradients(carried, gradients)
            replica.add_gradients(block, {name: gradients.pop(name) for name in blocks[block]})
            carried = gradients
    return loss_to_host(loss, tokens, targets, model.config.vocab_size)


def _check_batch(tokens: Any, targets: Any) -> None:
    """Refuse arrays that are no batch of tokens, or have no row, and targets that are ignored."""
    for name, x in (("tokens", tokens), ("targets", targets)):
        if not is_array(x) or x.ndim != 2 or x.size == 0 or not namespace(x).isdtype(x.dtype, "integral"):
            raise ValueError(f"{name} is {kind_of(x)}: whole numbers [batch, sequence] are needed, on every rank")
    if number_of_targets(targets) < targets.size:
        raise ValueError(
            f"targets hold {IGNORED}, the ignored label: the mean over ranks would not be that over target tokens; "
            "use parlab.train.Trainer, which weighs each rank by its targets"
        )


def _activations(cache: Any) -> list[Array]:
    """The arrays in a cache, without tokens and targets, which belong to the caller."""
    return [x for x in arrays_in(cache) if not namespace(x).isdtype(x.dtype, "integral")]


def open_blocks(replica: Zero, blocks: Iterable[str]) -> ExitStack:
    """Open several blocks, for as long as the `with` lasts; the model then finds their weights in `replica.params`."""
    stack = ExitStack()
    for block in blocks:
        stack.enter_context(replica.weights(block))
    return stack
