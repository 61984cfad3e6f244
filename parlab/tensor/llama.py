"""The tensor-parallel Llama: the serial one's blocks, from parts whose work the ranks divide.

>>> import numpy as np
>>> from parlab import run
>>> config = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4)
>>> serial = Llama.random(config, seed=1, xp=np)
>>> tokens = np.random.default_rng(2).integers(11, size=(3, 6))  # [B, S]
>>> def program(comm):
...     return ParallelLlama.from_full(comm, serial).logits(tokens)
>>> bool(np.allclose(run(program, 2).results[1], serial.logits(tokens)))
True

Invariant: between the blocks x is the same on every rank, or S/t tokens of it; the gradients are those of this rank's
slices, the same on all ranks that own a slice.

Sources: Shoeybi et al. 2019, "Megatron-LM"; Korthikanti et al. 2022 (sequence parallelism).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from parlab.arguments import instance
from parlab.arrays import Array, namespace, to_host
from parlab.nn.config import EMBEDDING, FINAL_NORM, HEAD, LlamaConfig
from parlab.nn.layers import CAUSAL_ATTENTION, Block, Core, RMSNorm
from parlab.nn.llama import Decoder, Llama
from parlab.nn.optimizer import clip_factor, sum_of_squares
from parlab.nn.rotary import Rotary
from parlab.nn.stage import Gradients, Stage
from parlab.tensor.layers import ParallelAttention, ParallelMLP, SummedOverTokens, kv_sharers
from parlab.tensor.slices import WeightSlice, shard_weights, take, weight_slices
from parlab.tensor.vocabulary import ParallelHead, VocabParallelEmbedding
from parlab.world import Comm
from parlab.world.collectives import piece_sizes, pieces_of


class ParallelLlama(Decoder):
    """A Llama of which this rank has its heads, its columns and its part of the vocabulary.

    `loss_and_gradients(tokens, targets)` takes the same tokens on every rank, and gives the same loss, and of the
    gradients this rank's slices; `stages` cuts it for a pipeline, as a serial one.

    Args:
        comm: the tensor-parallel group; every rank of it makes the model and calls its methods.
        config: of the whole model.
        weights: this rank's slices, by name (`shard_weights`). Shared, not copied.
        names: of the weights that this rank has, as one that owns a stage of a pipeline does; None: all.
        sequence_parallel: between the regions that the ranks divide, each has S/t tokens.
        positions, core: as for `Llama`.
        mlp: makes the MLP of a layer from the layer's prefix; None: a `ParallelMLP`.

    Raises:
        ValueError: heads or columns do not divide among the ranks, or a weight is not this rank's slice; before any
            message.
    """

    def __init__(
        self,
        comm: Comm,
        config: LlamaConfig,
        weights: dict[str, Array],
        *,
        names: Collection[str] | None = None,
        sequence_parallel: bool = False,
        positions: Array | Callable[[int], Array] | None = None,
        core: Core = CAUSAL_ATTENTION,
        mlp: Callable[[str], Stage] | None = None,
    ) -> None:
        instance("weights", weights, Mapping)
        self.comm, self.sequence_parallel = comm, sequence_parallel
        self.slices = weight_slices(config, comm.rank, comm.size)
        _check_shards(comm, config, weights, self.slices, config.weight_shapes if names is None else names)
        sharers = kv_sharers(comm, config.num_key_value_heads)
        rotary = Rotary(config.head_dim, config.rope_theta, config.rope_scaling, positions)

        def norm(name: str) -> Stage:
            of_tokens = RMSNorm(weights, name, config.rms_norm_eps)
            return SummedOverTokens(comm, of_tokens) if sequence_parallel else of_tokens

        def parallel_mlp(prefix: str) -> Stage:
            return ParallelMLP(comm, weights, f"{prefix}.mlp", sequence_parallel=sequence_parallel)

        make_mlp = mlp or parallel_mlp

        def block(prefix: str) -> Block:
            return Block(
                norm(f"{prefix}.input_layernorm.weight"),
                ParallelAttention(
                    comm,
                    weights,
                    f"{prefix}.self_attn",
                    config.head_dim,
                    rotary,
                    core,
                    sharers=sharers,
                    sequence_parallel=sequence_parallel,
                ),
                norm(f"{prefix}.post_attention_layernorm.weight"),
                make_mlp(prefix),
            )

        tied = config.tie_word_embeddings
        super().__init__(
            config,
            weights,
            VocabParallelEmbedding(comm, weights, EMBEDDING, config.vocab_size, sequence_parallel=sequence_parallel),
            [block(f"model.layers.{layer}") for layer in range(config.num_hidden_layers)],
            ParallelHead(
                comm,
                norm(FINAL_NORM),
                weights,
                EMBEDDING if tied else HEAD,
                config.vocab_size,
                tied=tied,
                sequence_parallel=sequence_parallel,
            ),
        )

    @classmethod
    def from_full(cls, comm: Comm, model: Llama, **options: Any) -> ParallelLlama:
        """From a serial model, of whose weights this rank keeps copies of its slices.

        Raises:
            ValueError: heads or columns do not divide among the ranks.
        """
        instance("model", model, Llama)
        return cls(comm, model.config, shard_weights(model.config, model.weights, comm.rank, comm.size), **options)

    def whole(self, shards: Mapping[str, Array]) -> dict[str, Array]:
        """The whole weights, or gradients, from those of all ranks: an all-gather for each that is cut."""
        of_all = [weight_slices(self.config, rank, self.comm.size) for rank in range(self.comm.size)]
        return {name: _joined(self.comm, x, [of_rank[name] for of_rank in of_all]) for name, x in shards.items()}

    def logits(self, tokens: Array) -> Array:
        """`[B, S]` -> `[B, S, V]`, gathered from all ranks. A loss does not need this: it never makes them whole.

        Raises:
            ValueError: tokens of another shape or dtype, or outside the vocabulary.
        """
        lengths = piece_sizes(self.config.vocab_size, self.comm.size)
        return self.comm.all_gather(super().logits(tokens), axis=2, counts=lengths)

    def clip_gradients(self, gradients: Gradients, max_norm: float) -> tuple[Gradients, float]:
        """As `parlab.nn.optimizer.clip_gradients`, by the norm of the whole model's gradients.

        A gradient that several ranks own counts once: of a norm, whole on every rank, or of a shared key/value head.
        """
        squares = sum(sum_of_squares(gradients[name]) / own.shared_by for name, own in self.slices.items())
        norm = math.sqrt(to_host(self.comm.all_reduce(squares)))
        factor = clip_factor(norm, max_norm)
        return {name: gradient * factor for name, gradient in gradients.items()}, norm


def _joined(comm: Comm, x: Array, of_all: list[WeightSlice]) -> Array:
    """The whole of a weight, from every rank's slice; of the ranks that own the same one, the first's."""
    axis, _, _, shared_by = of_all[0]
    if axis is None:
        return x
    lengths = [own.stop - own.start for own in of_all]
    gathered = comm.all_gather(x, axis, counts=lengths)
    firsts = pieces_of(lengths)[::shared_by]
    return namespace(x).concat([take(gathered, WeightSlice(axis, own.start, own.stop, 1)) for own in firsts], axis=axis)


def _check_shards(
    comm: Comm,
    config: LlamaConfig,
    weights: Mapping[str, Array],
    owned: Mapping[str, WeightSlice],
    names: Collection[str],
) -> None:
    for name in names:
        of_whole = config.weight_shapes[name]
        axis, start, stop, _ = owned[name]
        shape = tuple(stop - start if number == axis else n for number, n in enumerate(of_whole))
        found = tuple(weights[name].shape) if name in weights else None
        if found != shape:
            has = "is missing" if found is None else f"has shape {found}"
            raise ValueError(f"{name} {has}: of {of_whole}, rank {comm.rank} of {comm.size} owns {shape}")
