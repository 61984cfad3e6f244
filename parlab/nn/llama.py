"""The serial Llama: the reference that every parallel strategy must equal.

>>> config = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)
>>> model = Llama.random(config, seed=1)
>>> tokens = parlab.arrays.generator(2).integers(11, size=(3, 6))  # [B, S + 1]
>>> loss, gradients = model.loss_and_gradients(tokens[:, :-1], tokens[:, 1:])
>>> round(loss, 1), sorted(gradients) == sorted(model.weights)  # an untrained model guesses: log 11 = 2.4
(2.4, True)

Source: Touvron et al. 2023, "LLaMA"; names and files as in Hugging Face's transformers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

import parlab.arrays
from parlab.arguments import instance, whole
from parlab.arrays import Array, namespace, on_host
from parlab.nn.arguments import library
from parlab.nn.config import EMBEDDING, FINAL_NORM, HEAD, LlamaConfig
from parlab.nn.cross_entropy import check_any_target, loss_to_host
from parlab.nn.huggingface import read_config, read_weights, write_folder
from parlab.nn.layers import CAUSAL_ATTENTION, Block, Core, Embedding, GatedMLP, Head, RMSNorm, SelfAttention
from parlab.nn.rotary import Rotary
from parlab.nn.stage import Chain, Gradients, Stage


class Decoder:
    """An embedding, decoder blocks and a head: stages that read their weights from one dictionary."""

    def __init__(
        self, config: LlamaConfig, weights: dict[str, Array], embedding: Stage, blocks: Sequence[Stage], head: Stage
    ) -> None:
        self.config, self.weights = config, weights
        self.embedding, self.blocks, self.head = embedding, list(blocks), head
        self.chain = Chain([embedding, *blocks, head])

    def stages(self, layers: Sequence[range]) -> list[Chain]:
        """The model cut into stages for a pipeline: stage i owns the decoder blocks `layers[i]`.

        The first stage also owns the embedding. The last one also owns the final norm, the head and the loss, and its
        `forward` takes the targets. A tied table belongs to both, and its gradient is the sum of theirs.

        Raises:
            ValueError: the ranges are not all the layers in order.

        >>> config = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=3,
        ...                      num_attention_heads=2)
        >>> [len(stage.stages) for stage in Llama.random(config).stages([range(0, 2), range(2, 3)])]
        [3, 2]
        """
        every = list(range(self.config.num_hidden_layers))
        listed = isinstance(layers, Sequence) and all(isinstance(part, Sequence) for part in layers)
        if not listed or [layer for part in layers for layer in part] != every:
            raise ValueError(f"layers={layers!r}: a list of ranges that join to 0..{every[-1]} is needed")
        parts: list[list[Stage]] = [[self.blocks[layer] for layer in part] for part in layers]
        parts[0].insert(0, self.embedding)
        parts[-1].append(self.head)
        return [Chain(part) for part in parts]

    @property
    def weight_blocks(self) -> dict[str, tuple[str, ...]]:
        """The names of the weights by the block that ZeRO gathers: `embedding`, `layers.0`, ..., `head`."""
        blocks = {"embedding": self.embedding.weight_names}
        blocks |= {f"layers.{i}": block.weight_names for i, block in enumerate(self.blocks)}
        return blocks | {"head": tuple(name for name in self.head.weight_names if name != EMBEDDING)}

    def logits(self, tokens: Array) -> Array:
        """`[B, S]` -> `[B, S, V]`.

        Raises:
            ValueError: tokens of another shape or dtype, or outside the vocabulary.
        """
        _check_tokens("tokens", tokens)
        return self.chain.forward(tokens)[0]

    def loss_and_gradients(self, tokens: Array, targets: Array) -> tuple[float, Gradients]:
        """The mean cross-entropy in nats a target token, and its gradient with respect to every weight, by name.

        Args:
            tokens: `[B, S]`.
            targets: `[B, S]`, the next token of each token; this function does not shift them. `IGNORED`, −100, where a
                token has none.

        Raises:
            ValueError: tokens or targets of another shape or dtype, or outside the vocabulary; no target at all.
        """
        _check_tokens("tokens", tokens)
        _check_tokens("targets", targets)
        if on_host(targets):  # on a device `loss_to_host` looks, after all work
            check_any_target(targets)
        loss, cache = self.chain.forward(tokens, targets)
        _, gradients = self.chain.backward(1.0, cache)
        loss = loss_to_host(loss, tokens, targets, self.config.vocab_size)
        return loss, {name: gradients[name] for name in self.weights}


class Llama(Decoder):
    """A configuration, its weights by their Hugging Face names, and the layers that read them.

    Args:
        config: the sizes.
        weights: by name, matrices `[in, out]`. The dictionary is shared, not copied: if you replace an entry, the next
            call uses the new one.
        positions: of the tokens, `[S]` or `[B, S]`. None: 0, 1, 2, ...
        core: the attention itself. Context parallelism replaces the default, causal attention over all tokens.

    Raises:
        ValueError: a weight is missing, surplus, or of the wrong shape or dtype.
    """

    def __init__(
        self,
        config: LlamaConfig,
        weights: dict[str, Array],
        *,
        positions: Array | None = None,
        core: Core = CAUSAL_ATTENTION,
    ) -> None:
        _check_weights(config, weights)
        rotary = Rotary(config.head_dim, config.rope_theta, config.rope_scaling, positions)
        norm = RMSNorm(weights, FINAL_NORM, config.rms_norm_eps)
        tied = config.tie_word_embeddings
        super().__init__(
            config,
            weights,
            Embedding(weights, EMBEDDING),
            [self.block(layer, config, weights, rotary, core) for layer in range(config.num_hidden_layers)],
            Head(norm, weights, EMBEDDING if tied else HEAD, tied=tied),
        )

    def block(self, layer: int, config: LlamaConfig, weights: Mapping[str, Array], rotary: Rotary, core: Core) -> Block:
        """Layer number `layer`."""
        return decoder_block(config, weights, layer, rotary, core)

    @classmethod
    def random(
        cls, config: LlamaConfig, seed: int = 0, *, xp: Any = None, dtype: str = "float32", **kwargs: Any
    ) -> Self:
        """A model before training, as in transformers: matrices are normal with deviation `initializer_range`, norms 1.

        The same seed gives the same values in every library. `xp` None: `parlab.arrays.default_namespace()`.

        Raises:
            ValueError: no LlamaConfig, a negative seed, or a dtype that no weights can have.
        """
        instance("config", config, LlamaConfig)
        whole("seed", seed, 0)
        xp = library(xp)
        as_dtype = _dtype(xp, dtype)
        draw = parlab.arrays.generator(seed)
        weights = {}
        for name, shape in config.weight_shapes.items():
            if len(shape) == 1:
                weights[name] = xp.ones(shape, dtype=as_dtype)
            else:
                weights[name] = parlab.arrays.asarray(draw.normal(0.0, config.initializer_range, shape), xp, as_dtype)
        return cls(config, weights, **kwargs)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that transformers can open. Matrices are transposed to its `[out, in]`.

        The folder is made if it does not exist. An earlier model there is replaced, and never left half written.
        """
        weights = {name: _turned(name, parlab.arrays.to_numpy(x)) for name, x in self.weights.items()}
        config = self.config.to_dict() | {"torch_dtype": str(weights[EMBEDDING].dtype)}
        config.pop("dtype", None)  # its new name in transformers 5, which knows both
        write_folder(folder, config, weights)


def load(folder: str | os.PathLike[str], *, xp: Any = None, dtype: str | None = None, **kwargs: Any) -> Llama:
    """Read a folder that `Llama.save` or transformers wrote.

    Args:
        folder: with `config.json` and `model.safetensors`, or its parts and their index.
        xp: the array library. None: `parlab.arrays.default_namespace()`.
        dtype: of the weights. None: that of the file; bfloat16 becomes float32.
        kwargs: `positions` and `core`, as for `Llama`.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a damaged file, another architecture, weights that do not fit the configuration, or a `dtype` that
            no weights can have.
    """
    return load_as(Llama, LlamaConfig, folder, xp, dtype, **kwargs)


Model = TypeVar("Model", bound=Llama)


def load_as(
    model: type[Model],
    config_of: type[LlamaConfig],
    folder: str | os.PathLike[str],
    xp: Any = None,
    dtype: str | None = None,
    **kwargs: Any,
) -> Model:
    """As `load`, for a model and its configuration of this or another architecture."""
    config = config_of.from_dict(read_config(folder))
    tensors = {name: x for name, x in read_weights(folder).items() if not name.endswith("rotary_emb.inv_freq")}
    if config.tie_word_embeddings:
        tensors.pop(HEAD, None)  # a copy of the table, in some files
    xp = library(xp)
    as_dtype = None if dtype is None else _dtype(xp, dtype)
    names = dict.fromkeys([*config.weight_shapes, *tensors])  # in the model's order
    weights = {
        name: parlab.arrays.asarray(_turned(name, tensors[name]), xp, as_dtype) for name in names if name in tensors
    }
    try:
        return model(config, weights, **kwargs)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def decoder_block(
    config: LlamaConfig,
    weights: Mapping[str, Array],
    layer: int,
    rotary: Rotary,
    core: Core,
    mlp: Stage | None = None,
) -> Block:
    """Layer number `layer` of the decoder. `mlp` replaces the gated MLP, if given."""
    prefix = f"model.layers.{layer}"
    return Block(
        RMSNorm(weights, f"{prefix}.input_layernorm.weight", config.rms_norm_eps),
        SelfAttention(weights, f"{prefix}.self_attn", config.head_dim, rotary, core),
        RMSNorm(weights, f"{prefix}.post_attention_layernorm.weight", config.rms_norm_eps),
        mlp or GatedMLP(weights, f"{prefix}.mlp"),
    )


def _turned(name: str, x: Any) -> Any:
    """A matrix transposed, from `[in, out]` to `[out, in]` or back. The embedding's table stays as it is."""
    return x if x.ndim != 2 or name == EMBEDDING else x.T.copy(order="C")


def _dtype(xp: Any, name: str) -> Any:
    if name not in ("float16", "float32", "float64") or not hasattr(xp, name):
        raise ValueError(f"dtype={name!r}: float64, float32 or, where {xp.__name__} has it, float16 is needed")
    return getattr(xp, name)


def _check_weights(config: LlamaConfig, weights: Mapping[str, Array]) -> None:
    instance("config", config, LlamaConfig)
    instance("weights", weights, Mapping)
    shapes = config.weight_shapes
    for problem, names in (("missing", shapes.keys() - weights.keys()), ("surplus", weights.keys() - shapes.keys())):
        if names:
            raise ValueError(f"{len(names)} weights are {problem} for this configuration, among them {min(names)}")
    dtype = weights[EMBEDDING].dtype
    for name, shape in shapes.items():
        x = weights[name]
        if tuple(x.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: the configuration asks for {shape}")
        if not namespace(x).isdtype(x.dtype, "real floating") or x.dtype != dtype:
            raise ValueError(f"{name} has dtype {x.dtype}: one floating dtype for all is needed ({EMBEDDING}: {dtype})")


def _check_tokens(name: str, tokens: Array) -> None:
    if not parlab.arrays.is_array(tokens) or tokens.ndim != 2 or tokens.size == 0:
        shape = tuple(getattr(tokens, "shape", ()))
        raise ValueError(f"{name}: an array [batch, sequence] of whole numbers is needed, not shape {shape}")
