"""The sizes of a model that the formulas read, by the papers' words.

Invariant: they are the whole model's, before any rank has its part; `case` and `stages` have a rank's.
"""

from __future__ import annotations

from parlab.nn.config import Config, LlamaConfig
from parlab.nn.mixtral import MixtralConfig


class Sizes:
    """The sizes of a Llama, a Mixtral or a GPT, and its numbers of parameters.

    Attributes:
        kv_heads, head_dim: of attention; a GPT has as many key/value heads as query heads.
        up_columns, mlp_columns: of the MLP's products up (gate and up of a Llama) and down; 0 where experts replace it.
        num_experts, experts_per_token, expert_columns: of a layer, of a token, and of an expert; 0 without experts.
        fused_attention: it runs in tiles, without the masked half; else all of S × S is there.
        tied_params: of the table, if the head is the embedding; else 0.
        layer_matrices: parameters of a layer's matrices, without experts.
        layer_cut, layer_whole: parameters of a layer that tensor parallelism cuts, and that are whole on every rank.
        expert_params: of one expert.
        active_params: of a layer's matrices that a token passes.
        first_params, last_params: before and after the layers; a tied head counts as a copy on the last stage.
    """

    def __init__(self, config: Config) -> None:
        self.vocab_size, self.num_layers = config.vocab_size, config.num_hidden_layers
        self.hidden_size, self.heads = E, H = config.hidden_size, config.num_attention_heads
        self.num_experts = self.experts_per_token = self.expert_columns = 0
        router = 0  # parameters
        # Norms, and biases of row layers, are on every rank; biases of column layers are cut
        if isinstance(config, LlamaConfig):
            self.kv_heads, self.head_dim = config.num_key_value_heads, config.head_dim
            self.mlp_columns, self.up_columns = config.intermediate_size, 2 * config.intermediate_size
            norm, column_biases, row_biases, positions = E, 0, 0, 0
        else:
            self.kv_heads, self.head_dim = H, E // H
            self.mlp_columns = self.up_columns = 4 * E
            norm, column_biases, row_biases, positions = 2 * E, 7 * E, 2 * E, config.max_position_embeddings
        if isinstance(config, MixtralConfig):
            self.num_experts, self.experts_per_token = config.num_local_experts, config.num_experts_per_tok
            self.expert_columns, router = self.mlp_columns, E * self.num_experts
            self.mlp_columns = self.up_columns = 0
        self.fused_attention = isinstance(config, LlamaConfig)
        tied = not isinstance(config, LlamaConfig) or config.tie_word_embeddings
        self.tied_params = self.vocab_size * E if tied else 0
        attention = 2 * E * (H + self.kv_heads) * self.head_dim
        self.layer_matrices = attention + E * (self.up_columns + self.mlp_columns)
        self.layer_cut, self.layer_whole = self.layer_matrices + column_biases, 2 * norm + row_biases + router
        self.expert_params = 3 * E * self.expert_columns
        self.active_params = self.layer_matrices + router + self.experts_per_token * self.expert_params
        self.first_params, self.last_params = (self.vocab_size + positions) * E, self.vocab_size * E + norm

    def pairs(self, sequence: int) -> float:
        """Pairs of a query and a key that attention computes for each head: fused attention the causal ones alone."""
        return sequence * (sequence + 1) / 2 if self.fused_attention else sequence * sequence
