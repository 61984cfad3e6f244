"""A model under columns of layouts: the sizes that the formulas read, by the papers' words.

The formulas also use the letters of the shapes: B batch, S sequence, H query heads, G key/value heads, D head size,
E hidden size, V vocabulary, L layers; and d, p, c, t for the ranks of dp, pp, cp and tp, v for chunks, m for
microbatches.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from parlab.nn.config import Config, LlamaConfig
from parlab.nn.mixtral import MixtralConfig
from parlab.plan.layout import Layout
from parlab.plan.software import OURS, Software
from parlab.zero import MIXED, StateBytes


class Sizes:
    """The sizes of a Llama, a Mixtral or a GPT, and its numbers of parameters.

    Attributes:
        kv_heads, head_dim: G and D; a GPT has as many key/value heads as query heads.
        up_columns, mlp_columns: of the MLP's products up (gate and up of a Llama) and down; 0 where experts replace it.
        num_experts, experts_per_token, expert_columns: N, k and the columns of an expert; 0 without experts.
        fused_attention: it runs in tiles, without the masked half; else all of S × S is there.
        tied: the head is the embedding.
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
        self.tied = not isinstance(config, LlamaConfig) or config.tie_word_embeddings
        attention = 2 * E * (H + self.kv_heads) * self.head_dim
        self.layer_matrices = attention + E * (self.up_columns + self.mlp_columns)
        self.layer_cut, self.layer_whole = self.layer_matrices + column_biases, 2 * norm + row_biases + router
        self.expert_params = 3 * E * self.expert_columns
        self.active_params = self.layer_matrices + router + self.experts_per_token * self.expert_params
        self.first_params, self.last_params = (self.vocab_size + positions) * E, self.vocab_size * E + norm


class Case(Sizes):
    """A model, its data, columns of possible layouts, and the habits of the software: all that the formulas read.

    Attributes:
        dp, pp, cp, tp, ep, chunks, microbatch, zero, offload, sequence_parallel, recompute: the layout's, in columns.
        one_f_one_b: forwards and backwards take turns; else all microbatches pass a chunk one after the other.
        itemsize, wide_itemsize: bytes of an activation's element; of one in float32 or wider.
        gradient_bytes: of a gradient that travels.
        token_ranks: how many ranks divide the tokens between tensor parallelism's regions.
        microbatches: m, of a replica.
        pipeline: the four sizes that `parlab.pipeline.closed_forms` takes.
        tokens: of a microbatch on a rank.
        input_bytes: of a layer's input.
        own_kv_heads: of a rank.
        attention_pairs: (query, key, head) triples of a microbatch on a rank.
        flops: of a step, without recomputation.
        forward_turns, backward_turns: all-gathers and reduce-scatters of a layer's input, for tensor parallelism.
        logit_bytes: of all logits of a microbatch.
        loss_columns: over which the loss runs on a rank.
        data_ranks, edp: over which ZeRO shards a parameter, and an expert's.
        whole_gradients: ZeRO keeps them whole until the step ends.
        gathered_once: ZeRO-3 gathers weights once for all microbatches.
        reductions: how often a gradient is reduced in a step.
        gradient_passes, forward_gathers, backward_gathers: times that ZeRO sends all gradients, and all weights before
            the forward and before the backward, as `parlab.zero.elements_sent` counts them.
        chunk_layers, fewer_first, fewer_last: layers of a chunk, and how many fewer the first and the last one have.
        expert_rows: rows of a rank to experts, and at an even load from others.
        layer_params, layer_expert_params: of a layer on a rank, without experts, and of its experts.
        params: of all ranks of a pipeline, without experts.
        stages: of a pipeline's first, second and last rank: its number, missing layers, parameters without experts.
    """

    def __init__(
        self,
        config: Config,
        layout: Layout,
        batch: int,
        sequence: int,
        state: StateBytes = MIXED,
        itemsize: int = 2,
        software: Software = OURS,
    ) -> None:
        super().__init__(config)
        self.config, self.sequence, self.state, self.software = config, sequence, state, software
        self.itemsize, self.wide_itemsize = itemsize, max(itemsize, 4)
        self.gradient_bytes = software.gradient or state.gradient
        of = {name: np.asarray(value) for name, value in vars(layout).items()}
        for name in ("dp", "pp", "cp", "tp", "ep", "chunks", "microbatch", "zero"):
            of[name] = of[name].astype(float)
        self.dp, self.pp, self.cp, self.tp, self.ep = (of[axis] for axis in ("dp", "pp", "cp", "tp", "ep"))
        self.chunks, self.microbatch, self.zero, self.recompute = (
            of[name] for name in ("chunks", "microbatch", "zero", "recompute")
        )
        self.offload, self.sequence_parallel = of["offload"].astype(bool), of["sequence_parallel"].astype(bool)
        self.one_f_one_b = of["schedule"] == "1f1b"
        self.microbatches = batch / (self.dp * self.microbatch)
        self.pipeline = self.pp, self.microbatches, self.chunks, self.one_f_one_b
        self._set_work(batch)
        self._set_turns()
        self._set_zero()
        self._set_stages()

    def _set_work(self, batch: int) -> None:
        """Tokens, attention and FLOPs."""
        sequence = self.sequence
        self.tokens = self.microbatch * sequence / self.cp
        self.token_ranks = np.where(self.sequence_parallel, self.tp, 1)
        self.expert_rows = self.tokens / self.token_ranks * self.experts_per_token
        self.input_bytes = self.itemsize * self.tokens * self.hidden_size
        self.own_kv_heads = np.maximum(self.kv_heads / self.tp, 1)
        # Fused attention computes the causal pairs, and the zigzag layout gives each rank equally many
        pairs = sequence * (sequence + 1) / 2 if self.fused_attention else sequence * sequence
        self.attention_pairs = self.microbatch * pairs * self.heads / (self.tp * self.cp)
        matrices = self.num_layers * self.active_params + self.hidden_size * self.vocab_size
        self.flops = 3.0 * batch * (2 * sequence * matrices + self.num_layers * 4 * pairs * self.heads * self.head_dim)

    def _set_turns(self) -> None:
        """The traffic of tensor parallelism, and the loss."""
        software = self.software
        # Gate and up may sum the gradient of x apart
        sums = 2 if software.joins_products or not self.fused_attention else 3
        self.forward_turns = 4
        self.backward_turns = np.where(self.sequence_parallel, 6 if software.gathers_again else 4, 2 * sums)
        if self.num_experts:  # they have no turns
            self.forward_turns = 2
            self.backward_turns = np.where(self.sequence_parallel, 3 if software.gathers_again else 2, 2)
        self.logit_bytes = self.itemsize * self.tokens * self.vocab_size
        self.loss_columns = self.vocab_size / self.tp if software.cuts_logits else self.vocab_size

    def _set_zero(self) -> None:
        """The traffic of ZeRO.

        ZeRO-2 and ZeRO-3 keep no whole gradients, and send those of each microbatch at once. But where all microbatches
        go through a chunk one after the other, ZeRO-2 keeps its gradients whole, and sends them once. Some software
        does so with ZeRO-3's gradients and weights too.
        """
        zero, software = self.zero, self.software
        self.data_ranks = self.dp * self.cp
        self.edp = self.data_ranks / self.ep
        self.whole_gradients = (zero < 2) | ((zero == 2) & ~self.one_f_one_b)
        self.gathered_once = (zero == 3) & ~self.one_f_one_b & software.gathers_once
        self.reductions = np.where(self.whole_gradients | self.gathered_once, 1, self.microbatches)
        all_reduced = zero <= (0 if software.scatters_gradients else 1)
        self.gradient_passes = np.where(all_reduced, 2, self.reductions)
        self.forward_gathers = np.where(zero == 3, self.reductions, zero > 0)
        self.backward_gathers = np.where(zero == 3, self.reductions, 0)

    def _set_stages(self) -> None:
        """Layers and parameters of ranks."""
        E, V = self.hidden_size, self.vocab_size
        self.chunk_layers, self.fewer_first, self.fewer_last = self._dealt()
        keys = 2 * E * self.head_dim  # parameters of a key/value head; ranks that share one hold it each
        cut = (self.layer_cut - keys * self.kv_heads) / self.tp
        self.layer_params = cut + keys * self.own_kv_heads + self.layer_whole
        self.layer_expert_params = self.num_experts / self.ep * self.expert_params
        before = self.first_params / self.tp
        after = (self.last_params - E) / self.tp + E  # the final norm is whole on every rank
        tied = V * E / self.tp if self.tied else 0  # a rank with both ends holds one table
        outside = before + after - np.where(self.pp == 1, tied, 0)
        self.params = self.num_layers * self.layer_params + outside
        self.stages = []
        for rank in (0, np.minimum(1, self.pp - 1), self.pp - 1):
            begins, ends = rank == 0, rank == self.pp - 1
            fewer = np.where(begins, self.fewer_first, ends * self.fewer_last)
            params = self.chunk_layers * self.chunks * self.layer_params - fewer * self.layer_params
            params = params + np.where(begins, before, 0) + np.where(ends, after - begins * tied, 0)
            self.stages.append((rank, fewer, params))

    def _dealt(self) -> tuple[Any, Any, Any]:
        """Layers of a chunk, and how many fewer the first chunk and the last one have.

        One chunk a rank: the last stage has so many layers less that with the head it is no slower than the others, of
        which some may have a layer less. Megatron takes the number of the last stage's layers, DeepSpeed balances
        parameters, picotron gives the first stages one more. Several chunks: where p·v does not divide L, the last
        chunk has one less, and maybe the first one too (Llama 3, section 3.3.2).
        """
        p, v, L = self.pp, self.chunks, self.num_layers
        head = self.hidden_size * self.vocab_size / self.active_params  # in layers
        most, others = np.ceil(L / p), np.maximum(p - 1, 1)
        slowest, last = np.full_like(most, np.inf), most
        for fewer in range(5):
            tried = np.where(p == 1, L, np.maximum(most - fewer, 0))
            time = np.maximum(np.ceil((L - tried) / others), tried + head)
            last, slowest = np.where(time < slowest, tried, last), np.minimum(time, slowest)
        uneven = np.where(p == 1, L, np.ceil((L - last) / others))
        missing = -L % (p * v)
        layers = np.where(v == 1, uneven, (L + missing) / (p * v))
        return layers, np.where(v == 1, 0, missing // 2), np.where(v == 1, uneven - last, np.minimum(missing, 1))

    def stride(self, axis: str) -> Any:
        """How far apart the ranks of an axis are: the product of the axes inside it, in the software's order."""
        sizes = {"tp": self.tp, "cp": self.cp, "pp": self.pp, "dp": self.dp}
        inner = self.software.order[: self.software.order.index(axis)]
        return reduce(np.multiply, (sizes[name] for name in inner), np.array(1.0))
