"""A layout: the ranks and the options of each strategy, one or columns of many; its rules; and a model under it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from parlab.arguments import instance
from parlab.nn.config import Config, LlamaConfig
from parlab.nn.mixtral import MixtralConfig
from parlab.plan.arguments import MOST_RANKS
from parlab.plan.software import MESH, OURS, Software
from parlab.zero import MIXED, StateBytes


@dataclass(frozen=True)
class Layout:
    """The choices of a planner. Each field is a value, or a column of values, of which `layout[number]` takes one.

    Args:
        dp, pp, cp, tp: ranks for data, pipeline, context and tensor parallelism; their product is the number of ranks.
        chunks: v, the pipeline stages of a rank.
        microbatch: sequences in a microbatch.
        zero: the ZeRO stage, 0 to 3, over the ranks of dp × cp.
        schedule: 1f1b (interleaved, if there are several chunks), gpipe, looped_bfs.
        sequence_parallel: Megatron's sequence parallelism in the tensor-parallel group.
        recompute: none; selective: attention's S × S weights, where a model keeps them; full: all but a layer's input.
        offload: the optimizer's state is held and updated in the host's memory.
        ep: ranks of dp × cp that deal out the experts of a mixture; it divides dp · cp.
    """

    dp: Any = 1
    pp: Any = 1
    cp: Any = 1
    tp: Any = 1
    chunks: Any = 1
    microbatch: Any = 1
    zero: Any = 1
    schedule: Any = "1f1b"
    sequence_parallel: Any = False
    recompute: Any = "none"
    offload: Any = False
    ep: Any = 1

    @property
    def ranks(self) -> Any:
        """The number of ranks."""
        return self.dp * self.pp * self.cp * self.tp

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape of the fields: () for a single layout."""
        return np.broadcast(*vars(self).values()).shape

    def __len__(self) -> int:
        return int(np.prod(self.shape))

    def __getitem__(self, chosen: Any) -> Layout:
        return Layout(**self.taken(vars(self), chosen))

    def taken(self, columns: dict[str, Any], chosen: Any) -> dict[str, Any]:
        """Entries of columns of these layouts: one, by its number, as plain values; several, by an array of numbers."""
        rows = {name: np.broadcast_to(x, self.shape).ravel()[chosen] for name, x in columns.items()}
        return {name: np.asarray(x).tolist() if np.ndim(x) == 0 else x for name, x in rows.items()}

    def but(self, **changes: Any) -> Layout:
        """The same layout with other values of some fields."""
        return replace(self, **changes)

    def __str__(self) -> str:
        if self.shape:
            return f"columns of {len(self)} layouts"
        text = f"dp {self.dp}, pp {self.pp}, cp {self.cp}, tp {self.tp}"
        text += f", chunks {self.chunks}" * (self.chunks > 1) + f", microbatch {self.microbatch}" * (
            self.microbatch > 1
        )
        text += f", ep {self.ep}" * (self.ep > 1)
        text += f", ZeRO-{self.zero}, {self.schedule}" + ", sequence parallel" * bool(self.sequence_parallel)
        return text + f", recompute {self.recompute}" * (self.recompute != "none") + ", offload" * bool(self.offload)


def check_layouts(layout: Any) -> None:
    """Refuse what is no layout, columns of different lengths, and columns of none."""
    instance("layout", layout, Layout)
    columns = {knob: np.shape(column) for knob, column in vars(layout).items() if np.ndim(column)}
    try:
        shape = np.broadcast_shapes(*columns.values())
    except ValueError:
        said = ", ".join(f"{knob} {list(size)}" for knob, size in columns.items())
        raise ValueError(f"layout: columns of the shapes {said}: make them as long as each other") from None
    if 0 in shape:
        raise ValueError(f"layout={layout}: at least one layout is needed")


class Sizes:
    """The sizes of a Llama or a GPT that the formulas need: the letters of the shapes, and numbers of parameters."""

    def __init__(self, config: Config) -> None:
        self.config, self.V, self.L = config, config.vocab_size, config.num_hidden_layers
        self.E, self.H = E, H = config.hidden_size, config.num_attention_heads
        self.fused = isinstance(config, LlamaConfig)  # attention in tiles, without the masked half; else all of S × S
        self.experts, self.chosen, self.width = 0, 0, 0  # of a mixture: N, k and the columns of an expert
        self.tied = not isinstance(config, LlamaConfig) or config.tie_word_embeddings  # a GPT's head is the embedding
        # Parameters of a layer beside its matrices. Tensor parallelism cuts the biases of column layers (cut). Norms
        # and the biases of row layers are on every rank (norm, whole)
        if isinstance(config, LlamaConfig):
            self.G, self.D, self.M = config.num_key_value_heads, config.head_dim, config.intermediate_size
            self.up, norm, cut, whole, positions = 2 * self.M, E, 0, 0, 0
            if isinstance(config, MixtralConfig):  # its experts stand beside what tensor parallelism cuts
                self.experts, self.chosen, self.width = config.num_local_experts, config.num_experts_per_tok, self.M
                self.M, self.up, whole = 0, 0, E * config.num_local_experts  # the router
        else:
            self.G, self.D, self.M = H, E // H, 4 * E
            self.up, norm, cut, whole, positions = 4 * E, 2 * E, 7 * E, 2 * E, config.max_position_embeddings
        self.layer_matrices = 2 * E * (H + self.G) * self.D + E * (self.up + self.M)
        self.layer_cut, self.layer_whole = self.layer_matrices + cut, 2 * norm + whole
        self.expert = 3 * E * self.width
        self.active = self.layer_matrices + (whole if self.experts else 0) + self.chosen * self.expert  # of a token
        self.first, self.last = (self.V + positions) * E, self.V * E + norm  # a tied head is a copy on the last stage


Rules = Iterator[tuple[str, str, np.ndarray]]  # of each rule: its fields, the right values, the layouts that break it


def own_rules(layout: Layout) -> Rules:
    """The rules of each field alone. The first rule that is broken counts, so later rules may rely on earlier ones."""
    of = {name: np.asarray(value) for name, value in vars(layout).items()}
    counts = ("dp", "pp", "cp", "tp", "chunks", "microbatch", "ep")
    for name in (*counts, "zero"):
        yield name, "whole numbers are needed", np.asarray(of[name].dtype.kind not in "iu")
    for name in counts:
        yield name, "must be at least 1", of[name] < 1
        yield name, f"must be at most {MOST_RANKS}", of[name] > MOST_RANKS
    ranks = reduce(np.multiply, (of[name].astype(float) for name in MESH))
    yield " ".join(MESH), f"their product, the number of ranks, must be at most {MOST_RANKS}", ranks > MOST_RANKS
    yield "zero", "use stage 0, 1, 2 or 3", ~np.isin(of["zero"], (0, 1, 2, 3))
    for name, choices in (("schedule", ("1f1b", "gpipe", "looped_bfs")), ("recompute", ("none", "selective", "full"))):
        yield name, f"use one of {', '.join(choices)}", ~np.isin(of[name], choices)
    for name in ("sequence_parallel", "offload"):
        yield name, "must be True or False", ~np.isin(of[name], (False, True))
        yield name, "must be True or False", np.asarray(of[name].dtype.kind != "b")  # 0 and 1 are in (False, True) too


def joint_rules(sizes: Sizes, layout: Layout, B: int, S: int) -> Rules:
    """The rules that join fields with each other, the model and the batch. Each field keeps its own rules already."""
    of = {name: np.asarray(value) for name, value in vars(layout).items()}
    d, p, c, t, v, b = (of[name].astype(np.int64) for name in ("dp", "pp", "cp", "tp", "chunks", "microbatch"))
    L, H, G, M, V, e = sizes.L, sizes.H, sizes.G, sizes.M, sizes.V, of["ep"].astype(np.int64)
    m, missing = B // (d * b), -L % (p * v)
    if sizes.experts:
        yield "ep", f"use a divisor of num_local_experts {sizes.experts}", sizes.experts % e != 0
        yield "dp cp ep", "ep must divide dp · cp", d * c % e != 0
    else:
        yield "ep", "the model has no experts: use 1", e > 1
    for name, size in (("num_attention_heads", H), *([] if sizes.experts else [("intermediate_size", M)])):
        yield "tp", f"{name} {size} does not divide among so many: use a divisor of {size}", size % t != 0
    yield "tp", f"use a divisor or a multiple of num_key_value_heads {G}", (G % t != 0) & (t % G != 0)
    yield "tp", f"at most vocab_size {V}", t > V
    yield "cp", f"sequence {S} must be a multiple of 2·cp, two chunks a rank (zigzag)", (c > 1) & (S % (2 * c) != 0)
    cut = of["sequence_parallel"] & (S % (c * t) != 0)
    yield "cp tp", f"sequence parallelism cuts sequence {S} by cp·tp: use a divisor", cut
    yield "dp microbatch", f"batch {B} must be a multiple of their product", B % (d * b) != 0
    yield "pp", f"batch {B} has fewer microbatches a replica, batch / (dp {{dp}} · microbatch {{microbatch}})", m < p
    yield "chunks", "one stage a rank where pp is 1", (v > 1) & (p == 1)
    yield "chunks", "gpipe has one stage a rank", (v > 1) & (of["schedule"] == "gpipe")
    ragged = (v > 1) & (of["schedule"] == "1f1b") & (m % p != 0)
    yield "pp chunks", f"interleaving needs a batch ({B}) of whole groups of pp microbatches", ragged
    yield "pp", f"{L} layers are fewer than so many stages: at most {L}", p > L
    right = f"pp·chunks must divide {L}, {L + 1} or {L + 2} (the last stage, or the first too, has a layer less)"
    yield "pp chunks", f"{L} layers do not divide into so many stages: {right}", (v > 1) & (missing > 2)


def possible(sizes: Sizes, layout: Layout, batch: int, sequence: int) -> np.ndarray:
    """For each layout whether it keeps the joint rules. Each field keeps its own rules already."""
    broken = reduce(np.logical_or, (broken for _, _, broken in joint_rules(sizes, layout, batch, sequence)))
    return np.broadcast_to(~broken, layout.shape)


def check_rules(layout: Layout, rules: Rules) -> None:
    """Refuse the first layout that breaks one of these rules: the text names the fields and the right values."""
    for knobs, right, broken in rules:
        if broken.any():
            first = vars(layout[np.argmax(np.broadcast_to(broken, layout.shape))])
            said = ", ".join(f"{knob}={first[knob]!r}" for knob in knobs.split())
            raise ValueError(f"{said}: {right.format(**first)}")


class Case(Sizes):
    """A model, its data, columns of possible layouts, and the habits of the software: all that the formulas read."""

    def __init__(
        self,
        config: Config,
        layout: Layout,
        batch: int,
        sequence: int,
        state: StateBytes = MIXED,
        item: int = 2,
        software: Software = OURS,
    ) -> None:
        super().__init__(config)
        self.sequence, self.state, self.software = sequence, state, software
        self.gradient = software.gradient or state.gradient  # bytes of a gradient that travels
        self.item, self.wide = item, max(item, 4)  # bytes of an activation; of one in float32 or wider
        of = {name: np.asarray(value) for name, value in vars(layout).items()}
        self.d, self.p, self.c, self.t, self.v, self.b, self.zero = (
            of[name].astype(float) for name in ("dp", "pp", "cp", "tp", "chunks", "microbatch", "zero")
        )
        self.offload, self.sequence_parallel = of["offload"].astype(bool), of["sequence_parallel"].astype(bool)
        self.between = np.where(self.sequence_parallel, self.t, 1)  # ranks that divide the tokens between the regions
        self.recompute, self.in_turn = of["recompute"], of["schedule"] == "1f1b"  # forwards and backwards in turn
        self.m = batch / (self.d * self.b)  # microbatches of a replica
        self.pipeline = self.p, self.m, self.v, self.in_turn
        self.n = self.b * sequence / self.c  # tokens of a microbatch on a rank
        self.x = item * self.n * self.E  # bytes of a layer's input
        self.kv = np.maximum(self.G / self.t, 1)  # key/value heads of a rank
        # (query, key, head) triples of a microbatch on a rank. Fused attention computes the causal ones, and the zigzag
        # layout gives each rank equally many
        pairs = sequence * (sequence + 1) / 2 if self.fused else sequence * sequence
        self.pairs = self.b * pairs * self.H / (self.t * self.c)
        matrices = self.L * self.active + self.E * self.V
        self.flops = 3.0 * batch * (2 * sequence * matrices + self.L * 4 * pairs * self.H * self.D)
        self.data = self.d * self.c  # ZeRO's ranks
        self.ep = of["ep"].astype(float)
        self.edp = self.data / self.ep  # ZeRO's ranks for experts
        self.layer_experts = self.experts / self.ep * self.expert  # parameters of a layer's experts on a rank
        self.pairs_of_rank = self.n / self.between * self.chosen  # rows to experts, and, at an even load, from others
        self.turns = 2 if self.experts else 4  # all-gathers and reduce-scatters of a layer's forward: experts have none
        # ZeRO-2 and ZeRO-3 keep no whole gradients, and send those of each microbatch at once. But where all
        # microbatches go through a chunk one after the other, ZeRO-2 keeps its gradients whole, and sends them once.
        # Some software does so with ZeRO-3's gradients and weights too
        self.kept_whole = (self.zero < 2) | ((self.zero == 2) & ~self.in_turn)
        self.once = (self.zero == 3) & ~self.in_turn & software.gathers_once
        self.passes = np.where(self.kept_whole | self.once, 1, self.m)  # how often gradients travel
        # Passes of ZeRO, as `parlab.zero.elements_sent` counts them: of the gradients; of the weights before the
        # forward; of the weights before the backward
        whole = self.zero <= (0 if software.scatters_gradients else 1)
        self.sums = np.where(whole, 2, self.passes)
        self.gathers, self.regathers = (np.where(self.zero == 3, self.passes, least) for least in (self.zero > 0, 0))
        self.layers, self.fewer_first, self.fewer_last = self._dealt()
        # Turns of a layer's backward: all-gathers and reduce-scatters of its input
        sums = 2 if software.joins_products or not self.fused else 3  # gate and up may sum the gradient of x apart
        self.turns_back = np.where(self.sequence_parallel, 6 if software.gathers_again else 4, 2 * sums)
        if self.experts:
            self.turns_back = np.where(self.sequence_parallel, 3 if software.gathers_again else 2, 2)
        self.logits = item * self.n * self.V  # bytes of all logits of a microbatch
        self.loss_columns = self.V / self.t if software.cuts_logits else self.V
        # Parameters of a layer that a rank holds. Several ranks may share a key/value head, and then each holds it
        keys = 2 * self.E * self.D
        self.layer_params = (self.layer_cut - keys * self.G) / self.t + keys * self.kv + self.layer_whole
        after = (self.last - self.E) / self.t + self.E  # the final norm is whole on every rank
        tied = self.V * self.E / self.t if self.tied else 0  # a rank with both ends holds one table
        outside = self.first / self.t + after - np.where(self.p == 1, tied, 0)
        self.params = self.L * self.layer_params + outside  # of all ranks of a pipeline
        # Of the first, second and last rank of a pipeline: number, missing layers, parameters held but for experts
        self.stages = []
        for rank in (0, np.minimum(1, self.p - 1), self.p - 1):
            begins, ends = rank == 0, rank == self.p - 1
            fewer = np.where(begins, self.fewer_first, ends * self.fewer_last)
            params = self.layers * self.v * self.layer_params - fewer * self.layer_params
            params = params + np.where(begins, self.first / self.t, 0) + np.where(ends, after - begins * tied, 0)
            self.stages.append((rank, fewer, params))

    def _dealt(self) -> tuple[Any, Any, Any]:
        """Layers of a chunk, and how many fewer the first chunk and the last one have.

        One chunk a rank: the last stage has so many layers less that with the head it is no slower than the others, of
        which some may have a layer less. Megatron takes the number of the last stage's layers, DeepSpeed balances
        parameters, picotron gives the first stages one more. Several chunks: where p·v does not divide L, the last
        chunk has one less, and maybe the first one too (Llama 3, section 3.3.2).
        """
        p, v, L = self.p, self.v, self.L
        head = self.E * self.V / self.active  # in layers
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
        sizes = {"tp": self.t, "cp": self.c, "pp": self.p, "dp": self.d}
        inner = self.software.order[: self.software.order.index(axis)]
        return reduce(np.multiply, (sizes[name] for name in inner), np.array(1.0))
