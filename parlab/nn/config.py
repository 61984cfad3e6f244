"""The sizes of a Llama, under Hugging Face's field names, and the shape of each of its weights; the sizes of a GPT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from parlab.arguments import amount, flag, positive, whole
from parlab.nn.rotary import rotary_type

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"

# Fields of a file that must have these values, because this model does nothing else.
ONLY = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
}
REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


@dataclass(frozen=True)
class LlamaConfig:
    """The fields of `config.json` that this model reads, with Hugging Face's defaults.

    Raises:
        ValueError: a size that is not a positive whole number, heads that do not divide, an odd head size, a number out
            of its range, or an unknown rope type.

    >>> config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=40, num_hidden_layers=2,
    ...                      num_attention_heads=4, num_key_value_heads=2)
    >>> config.head_dim, config.num_parameters
    (4, 6480)
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0  # 0: as many as query heads
    head_dim: int = 0  # 0: hidden_size / num_attention_heads
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    other: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)  # the rest of a file, kept for it

    architecture: ClassVar[str] = "LlamaForCausalLM"
    required: ClassVar[tuple[str, ...]] = REQUIRED
    only: ClassVar[Mapping[str, Any]] = ONLY

    def __post_init__(self) -> None:
        for name in self.required:
            whole(name, getattr(self, name), 1)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} does not divide among num_attention_heads {self.num_attention_heads}: "
                "use a multiple of it"
            )
        # a frozen dataclass fills in its defaults this way
        object.__setattr__(self, "num_key_value_heads", self.num_key_value_heads or self.num_attention_heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.hidden_size // self.num_attention_heads)
        for name in ("num_key_value_heads", "head_dim", "max_position_embeddings"):
            whole(name, getattr(self, name), 1)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} do not divide among num_key_value_heads "
                f"{self.num_key_value_heads}: use a multiple of it"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd: rotary positions turn pairs, so use an even number")
        for name in ("rms_norm_eps", "rope_theta"):
            positive(name, getattr(self, name), finite=True)
        amount("initializer_range", self.initializer_range)
        flag("tie_word_embeddings", self.tie_word_embeddings)
        rotary_type(self.rope_scaling)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """From the values of `config.json`: `rope_theta` and `rope_scaling`, or `rope_parameters` (transformers 5).

        Raises:
            ValueError: another architecture, or a feature of Llama that is not here (biases, another activation).
        """
        for name, only in cls.only.items():
            if values.get(name, only) != only:
                raise ValueError(f"config.json has {name}={values[name]!r}: only {only!r} is known here")
        values = {name: value for name, value in values.items() if value is not None}
        values |= _split_rope(values.pop("rope_parameters", None))
        if rotary_type(values.get("rope_scaling")) == "default":
            values.pop("rope_scaling", None)
        if values.get("partial_rotary_factor", 1) != 1:
            raise ValueError(f"partial_rotary_factor={values['partial_rotary_factor']!r}: only 1 is known here")
        known = {item.name for item in fields(cls)} - {"other"}
        missing = [name for name in cls.required if name not in values]
        if missing:
            raise ValueError(f"config.json lacks {', '.join(missing)}")
        other = {name: value for name, value in values.items() if name not in known}
        return cls(**{name: values[name] for name in known & set(values)}, other=other)

    def to_dict(self) -> dict[str, Any]:
        """The content of `config.json`."""
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "other"}
        return {"architectures": [self.architecture], **self.only, **self.other, **own}

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight by its name, in the model's order; matrices are `[in, out]`."""
        E, D = self.hidden_size, self.head_dim
        queries, keys = self.num_attention_heads * D, self.num_key_value_heads * D
        shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (self.vocab_size, E)}
        for layer in range(self.num_hidden_layers):
            of_layer = {
                "input_layernorm": (E,),
                "self_attn.q_proj": (E, queries),
                "self_attn.k_proj": (E, keys),
                "self_attn.v_proj": (E, keys),
                "self_attn.o_proj": (queries, E),
                "post_attention_layernorm": (E,),
                **self.mlp_shapes,
            }
            shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
        shapes[FINAL_NORM] = (E,)
        if not self.tie_word_embeddings:
            shapes[HEAD] = (E, self.vocab_size)
        return shapes

    @property
    def mlp_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the MLP of one layer."""
        E, M = self.hidden_size, self.intermediate_size
        return {"mlp.gate_proj": (E, M), "mlp.up_proj": (E, M), "mlp.down_proj": (M, E)}

    @property
    def num_parameters(self) -> int:
        """The numbers in all weights; a tied head counts once."""
        return sum(shape[0] * (shape[1] if len(shape) == 2 else 1) for shape in self.weight_shapes.values())


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT, under Hugging Face's names.

    It has layer norms, biases, attention that keeps S × S weights, an MLP of 4E columns with GELU, dropout, and a head
    tied to the embedding.

    Raises:
        ValueError: a size that is not a positive whole number, or heads that do not divide.

    >>> round(GPTConfig(51200, hidden_size=12288, num_hidden_layers=96, num_attention_heads=96).num_parameters / 1e9)
    175
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int = 2048

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            whole(name, size, 1)
        E, H = self.hidden_size, self.num_attention_heads
        if E % H:
            raise ValueError(f"hidden_size {E} does not divide among num_attention_heads {H}")

    @property
    def num_parameters(self) -> int:
        """12E² + 13E a layer, the two embeddings, and the last norm."""
        E, rows = self.hidden_size, self.vocab_size + self.max_position_embeddings
        return self.num_hidden_layers * (12 * E * E + 13 * E) + rows * E + 2 * E


Config = LlamaConfig | GPTConfig


def _split_rope(parameters: Any) -> dict[str, Any]:
    """`rope_theta` and `rope_scaling` from the one object in which transformers 5 keeps both."""
    if parameters is None:
        return {}
    if not isinstance(parameters, Mapping):
        raise ValueError(f"rope_parameters={parameters!r}: an object with a type is needed")
    scaling = {name: value for name, value in parameters.items() if value is not None}
    apart = {name: scaling.pop(name) for name in ("rope_theta", "partial_rotary_factor") if name in scaling}
    return apart | {"rope_scaling": scaling}
