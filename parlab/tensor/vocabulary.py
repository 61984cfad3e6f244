"""Both ends of the model, cut along the vocabulary: the embedding, and the head with its loss.

The logits `[B, S, V]` are often the largest array of a step, so no rank ever makes them whole: the loss needs three
numbers a token from every rank, and its gradient needs no message at all.

Invariant: each row of the table, and each column of the logits, is on one rank; the loss is the same on every rank.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.arguments import instance, text, whole
from parlab.arrays import Array, namespace
from parlab.nn.cross_entropy import IGNORED, checked_targets, mean_of_counted, share_of_counted
from parlab.nn.embedding import checked_range, embedding_backward, or_nan
from parlab.nn.layers import LinearLayer
from parlab.nn.stage import Gradients, Stage, Weights
from parlab.tensor.arguments import array, matrix
from parlab.tensor.linear import ParallelRegion
from parlab.tensor.operators import pair
from parlab.tensor.slices import ROWS, WeightSlice, owned_tokens, take
from parlab.world import Comm

# probabilities [B, S, V/t]; the target's column among this rank's (IGNORED: no target), is it here: [B, S] each
LossCache = tuple[Array, Array, Array]


class VocabParallelEmbedding(Stage):
    """Tokens `[B, S]`, the same on every rank, -> their rows of a table of which each rank has V/t.

    Every token's row is on one rank, and the others put zeros there: the sum over ranks is the embedding. Backward each
    rank adds dy, whole, to the rows that it has. With sequence parallelism the sum is scattered, and dy gathered.

    Args:
        comm: the tensor-parallel group.
        weights: this rank's shards.
        name: of the table.
        vocab_size: V of the whole table.
        sequence_parallel: y is `[B, S/t, E]`.
    """

    def __init__(
        self, comm: Comm, weights: Weights, name: str, vocab_size: int, *, sequence_parallel: bool = False
    ) -> None:
        instance("weights", weights, Mapping)
        text("name", name)
        whole("vocab_size", vocab_size, 1)
        self.comm, self.weights, self.name, self.weight_names = comm, weights, name, (name,)
        self.vocab_size, self.owned = vocab_size, owned_tokens(vocab_size, comm.rank, comm.size)
        _, self.leave = pair(sequence_parallel)

    @classmethod
    def from_full(cls, comm: Comm, weight: Array, name: str = "weight", **options: Any) -> VocabParallelEmbedding:
        """From the whole table `[V, E]`, of which this rank keeps a copy of its rows.

        >>> import numpy as np
        >>> from parlab import run
        >>> def program(comm, tokens, table):
        ...     return VocabParallelEmbedding.from_full(comm, table).forward(tokens)[0]
        >>> tokens, table = np.array([[4, 0, 3]]), np.arange(10.0).reshape(5, 2)
        >>> bool((run(program, 2, tokens, table).results[1] == table[tokens]).all())
        True
        """
        matrix("weight", weight)
        V = weight.shape[0]
        owned = owned_tokens(V, comm.rank, comm.size)
        return cls(comm, {name: take(weight, WeightSlice(ROWS, owned.start, owned.stop, 1))}, name, V, **options)

    def forward(self, x: Array) -> tuple[Array, Any]:
        """`(rows, cache)`.

        Raises:
            ValueError: a token outside 0..V−1.
        """
        x, inside = checked_range("tokens", x, self.vocab_size)  # a GPU cannot refuse without a wait: NaN, below
        table = self.weights[self.name]
        xp = namespace(table)
        place, here = _place(x, self.owned)
        rows = xp.take(table, xp.reshape(place, (-1,)), axis=0)  # [B·S, E]
        rows = or_nan(xp.where(xp.reshape(here, (-1, 1)), rows, xp.zeros_like(rows)), inside)
        return self.leave.forward(self.comm, xp.reshape(rows, (*x.shape, table.shape[1]))), (place, here)

    def backward_input(self, dy: Array, cache: Any) -> tuple[None, Any]:
        """`(None, pending)`: tokens have no gradient."""
        return None, (self.leave.backward(self.comm, dy), cache)

    def backward_weight(self, pending: Any) -> Gradients:
        """The gradient of this rank's rows."""
        dy, (place, here) = pending
        dy = dy * namespace(dy).astype(here, dy.dtype)[..., None]
        return {self.name: embedding_backward(dy, place, self.owned.stop - self.owned.start)}


def vocab_parallel_cross_entropy(
    comm: Comm, logits: Array, targets: Array, vocab_size: int | None = None
) -> tuple[Array, LossCache]:
    """Mean over all target tokens of −log softmax(logits)[target], where each rank has some of a token's logits.

    Three all-reduces, of one number a token each: the largest logit, so that exp cannot overflow and all ranks subtract
    the same; the target's logit, which one rank has and the others put 0 for; the sum of exp.

    Args:
        comm: the tensor-parallel group.
        logits: `[B, S, V/t]`, of this rank's part of the vocabulary.
        targets: `[B, S]`, the same on every rank; `IGNORED` (`parlab.nn`) where a token has none.
        vocab_size: V, whose first (V mod t) parts are one longer; None: all parts are as long as this rank's.

    Returns:
        The loss, the same on every rank, and the cache.

    Raises:
        ValueError: targets of another shape than the logits' tokens, or outside 0..V−1; logits of another part.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> run(vocab_parallel_cross_entropy, 2, per_rank([np.zeros((1, 3, 2))] * 2), np.array([[0, 1, 3]])).results[0][0]
    array(1.38629436)
    """
    array("logits", logits)
    array("targets", targets)
    if vocab_size is None:
        vocab_size = comm.size * logits.shape[-1]
    else:
        whole("vocab_size", vocab_size, 1)
    owned = owned_tokens(vocab_size, comm.rank, comm.size)
    _check_loss(comm, logits, targets, vocab_size, owned)
    targets, counted, inside = checked_targets(targets, vocab_size)
    xp = namespace(logits)
    wide = xp.astype(logits, xp.result_type(logits.dtype, xp.float32), copy=False)
    largest = comm.all_reduce(xp.max(wide, axis=-1), op="max")  # [B, S]
    place, here = _place(targets, owned)
    chosen = xp.take_along_axis(wide, place[..., None], axis=-1)[..., 0]
    chosen = comm.all_reduce(xp.where(here, chosen, xp.zeros_like(chosen)))  # [B, S]
    exps = xp.exp(wide - largest[..., None])  # [B, S, V/t]
    sum_of_exps = comm.all_reduce(xp.sum(exps, axis=-1))  # [B, S]
    exps /= sum_of_exps[..., None]  # the probabilities, in the same memory
    loss = or_nan(mean_of_counted(largest + xp.log(sum_of_exps) - chosen, counted), inside)
    place = xp.where(counted, place, xp.full_like(place, IGNORED))
    return xp.asarray(loss), (xp.astype(exps, logits.dtype, copy=False), place, here)


def vocab_parallel_cross_entropy_backward(dloss: float, cache: LossCache) -> Array:
    """dlogits = dloss (softmax − one-hot target) / target tokens, of this rank's logits `[B, S, V/t]`. No message."""
    probabilities, place, here = cache
    xp = namespace(probabilities)
    share = share_of_counted(dloss, place != IGNORED, probabilities.dtype)  # [B, S, 1]
    columns = xp.arange(probabilities.shape[-1], dtype=place.dtype, device=place.device)
    hit = (columns == place[..., None]) & here[..., None]
    dlogits = probabilities * share
    dlogits -= xp.astype(hit, dlogits.dtype) * share
    return dlogits


class TiedLinear(LinearLayer):
    """A `LinearLayer` whose weight `[E, V/t]` is the transpose of the embedding's rows `[V/t, E]`."""

    @property
    def weight(self) -> Array:
        """`[E, V/t]`."""
        return namespace(self.weights[self.name]).matrix_transpose(self.weights[self.name])

    def backward_weight(self, pending: Any) -> Gradients:
        """Of the embedding's rows, `[V/t, E]`."""
        gradient = super().backward_weight(pending)[self.name]
        return {self.name: namespace(gradient).matrix_transpose(gradient)}


class ParallelHead(Stage):
    """The final norm, this rank's columns of the projection and, given targets, the loss.

    Without targets y is this rank's part of the logits, `[B, S, V/t]`. The projection is a column layer whose output
    stays cut, so forward it sends nothing (with sequence parallelism it gathers x), and backward its dx is added up.

    Args:
        comm: the tensor-parallel group.
        norm: over this rank's tokens.
        weights: this rank's shards.
        projection: the name of `[E, V/t]` or, `tied`, of the embedding's `[V/t, E]`.
        vocab_size: V.
        tied: see the serial `Head`.
        sequence_parallel: x is `[B, S/t, E]`: this rank's tokens.
    """

    def __init__(
        self,
        comm: Comm,
        norm: Stage,
        weights: Weights,
        projection: str,
        vocab_size: int,
        *,
        tied: bool,
        sequence_parallel: bool = False,
    ) -> None:
        self.comm, self.norm, self.weights, self.vocab_size = comm, norm, weights, vocab_size
        columns = (TiedLinear if tied else LinearLayer)(weights, projection)
        enter, _ = pair(sequence_parallel)
        self.projection = ParallelRegion(comm, columns, "head", enter=enter)
        self.weight_names = (*norm.weight_names, projection)

    def forward(self, x: Array, targets: Array | None = None) -> tuple[Array, Any]:
        """`(logits [B, S, V/t], cache)`; with `targets [B, S]`, `(loss, cache)`."""
        x, norm_cache = self.norm.forward(x)
        y, of_projection = self.projection.forward(x)
        of_loss = None
        if targets is not None:
            y, of_loss = vocab_parallel_cross_entropy(self.comm, y, targets, self.vocab_size)
        return y, (norm_cache, of_projection, of_loss)

    def backward_input(self, dy: Any, cache: Any) -> tuple[Array, Any]:
        """`(dx, pending)`; dy is this rank's dlogits or, after a forward with targets, the loss's weight."""
        norm_cache, of_projection, of_loss = cache
        dx, pending = self.projection.backward_input(_dlogits(dy, of_loss), of_projection)
        dx, norm_pending = self.norm.backward_input(dx, norm_cache)
        return dx, (norm_pending, pending)

    def backward_weight(self, pending: Any) -> Gradients:
        """The gradients of the norm and of this rank's part of the projection."""
        norm_pending, of_projection = pending
        return self.norm.backward_weight(norm_pending) | self.projection.backward_weight(of_projection)

    def backward(self, dy: Any, cache: Any) -> tuple[Array, Gradients]:
        """Both, part by part: dx travels while the projection's gradient is computed."""
        norm_cache, of_projection, of_loss = cache
        dx, gradients = self.projection.backward(_dlogits(dy, of_loss), of_projection)
        dx, of_norm = self.norm.backward(dx, norm_cache)
        return dx, of_norm | gradients


def _dlogits(dy: Any, of_loss: LossCache | None) -> Array:
    return dy if of_loss is None else vocab_parallel_cross_entropy_backward(dy, of_loss)


def _place(tokens: Array, owned: slice) -> tuple[Array, Array]:
    """Where each token stands in this rank's part of the vocabulary, 0 if not there; and whether it is there."""
    xp = namespace(tokens)
    here = (tokens >= owned.start) & (tokens < owned.stop)
    return xp.where(here, tokens - owned.start, xp.zeros_like(tokens)), here


def _check_loss(comm: Comm, logits: Array, targets: Array, vocab_size: int, owned: slice) -> None:
    if tuple(targets.shape) != tuple(logits.shape[:-1]):
        raise ValueError(
            f"targets have shape {tuple(targets.shape)}, logits {tuple(logits.shape)}: one target a token is needed, "
            f"{tuple(logits.shape[:-1])}"
        )
    if logits.shape[-1] != owned.stop - owned.start:
        raise ValueError(
            f"logits hold {logits.shape[-1]} tokens of the vocabulary: of {vocab_size}, rank {comm.rank} of "
            f"{comm.size} owns {owned.stop - owned.start}"
        )
