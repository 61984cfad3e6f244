"""Text from a source of known entropy, so that a loss curve has a known floor.

A Markov source draws each character with probabilities that depend on the `order` characters before it. No model can
have a smaller mean loss than the *entropy rate* of the source. A model that sees fewer characters has a higher floor,
so the curve shows when a model has learnt to look further back.

Source: Shannon 1948, "A mathematical theory of communication", sections 4 and 7.
"""

from __future__ import annotations

from typing import Any

import parlab.arrays
from parlab.arguments import positive, whole
from parlab.arrays import Array, namespace
from parlab.nn.arguments import library

ALPHABET = " aeinorst"
MOST_CONTEXTS = 2**12  # their shares of a long text solve as many equations


class MarkovSource:
    """A source over `alphabet`, with probabilities drawn by `seed`.

    Args:
        alphabet: the characters; the token of a character is its index.
        order: how many characters the next one depends on.
        concentration: of the Dirichlet distribution from which each context gets its probabilities. Near 0 one
            character follows nearly always. If it is large, all characters are equally likely.
        seed: of the probabilities.

    Raises:
        ValueError: fewer than two characters, one twice, a number that is not positive, or too many contexts.

    >>> source = MarkovSource("ab", order=1, seed=1)
    >>> tokens, targets = source.batch(0, batch_size=2, length=5)
    >>> tokens.shape, bool((tokens[:, 1:] == targets[:, :-1]).all())
    ((2, 5), True)
    >>> source.entropy_rate == source.floor(1) < source.floor(0) < 0.6932  # log 2
    True
    """

    def __init__(self, alphabet: str = ALPHABET, *, order: int = 2, concentration: float = 0.3, seed: int = 0) -> None:
        if not isinstance(alphabet, str) or len(set(alphabet)) != len(alphabet) or len(alphabet) < 2:
            raise ValueError(f"alphabet={alphabet!r:.60}: two or more characters are needed, each of them once")
        whole("order", order, 1)
        positive("concentration", concentration, finite=True)
        whole("seed", seed, 0)
        self.alphabet, self.order, self.vocab_size = alphabet, order, len(alphabet)
        contexts = self.vocab_size ** min(order, MOST_CONTEXTS)
        if contexts > MOST_CONTEXTS:
            made = f"{len(alphabet)} characters make {len(alphabet)}^{order} contexts"
            raise ValueError(f"order={order!r:.60}: {made}, and at most {MOST_CONTEXTS} are possible")
        draw = parlab.arrays.generator(seed)
        self.transitions: Array = draw.dirichlet([concentration] * self.vocab_size, size=contexts)  # [V^order, V]
        self.stationary = self._stationary()  # [V^order]

    def _stationary(self) -> Array:
        """π `[V^order]`, the share of each context in a long text.

        π = π T and Σ π = 1, so π is the solution of (1 − Tᵀ + 1 1ᵀ) π = 1. T has the chance of each move from a context
        to the next: the oldest character is dropped, and one follows. So of context (a, rest), on to (rest, next), it
        has `transitions[(a, rest), next]`, and for each other context 0.
        """
        xp = namespace(self.transitions)
        V, contexts = self.vocab_size, self.transitions.shape[0]
        one_hot = xp.reshape(xp.eye(contexts), (contexts, V, contexts // V, 1))  # [context, a, rest, 1]
        chances = xp.reshape(self.transitions, (V, contexts // V, V))  # [a, rest, next]
        moves = xp.reshape(xp.sum(one_hot * chances, axis=1), (contexts, contexts))  # T [context, (rest, next)]
        return xp.linalg.solve(xp.eye(contexts) - moves.T + 1.0, xp.ones(contexts))

    @property
    def entropy_rate(self) -> float:
        """The least mean loss that any model can reach, in nats a character: Σ π(context) H(next | context)."""
        return self.floor(self.order)

    def floor(self, context: int) -> float:
        """The least mean loss, in nats, of a model that sees only the last `context` characters.

        It is H(context and next) − H(context). With `context` of at least the order it is the entropy rate.

        Raises:
            ValueError: a negative number of characters.
        """
        whole("context", context, 0)
        xp = namespace(self.transitions)
        V, seen = self.vocab_size, min(context, self.order)
        joint = xp.reshape(self.stationary[:, None] * self.transitions, (-1, V**seen, V))
        joint = xp.sum(joint, axis=0)  # [V^seen, V]: the older characters summed over
        return _entropy(joint) - _entropy(xp.sum(joint, axis=-1))

    def batch(self, step: int, *, batch_size: int, length: int, seed: int = 0, xp: Any = None) -> tuple[Array, Array]:
        """`(tokens, targets)`, both `[batch_size, length]`, of training step `step`.

        They depend on `seed` and `step` alone, so every rank gets the same batch, and takes its part.

        Raises:
            ValueError: a size that is not positive, a seed or a step that is negative.
        """
        whole("step", step, 0)
        whole("batch_size", batch_size, 1)
        whole("length", length, 1)
        whole("seed", seed, 0)
        xp = library(xp)
        draw = parlab.arrays.generator(seed, step)
        np = namespace(self.transitions)
        context = draw.choice(len(self.stationary), size=batch_size, p=self.stationary)  # [B]
        chances = draw.random((length + 1, batch_size))
        up_to = np.cumulative_sum(self.transitions, axis=-1)  # [V^order, V]
        characters = [context // self.vocab_size**k % self.vocab_size for k in reversed(range(self.order))]
        for chance in chances[self.order :]:
            character = np.sum(up_to[context, :-1] <= chance[:, None], axis=-1)
            context = (context * self.vocab_size + character) % len(self.stationary)
            characters.append(character)
        text = np.stack(characters[: length + 1], axis=1)  # [B, S + 1]
        tokens = parlab.arrays.asarray(text, xp, xp.int64)
        return tokens[:, :-1], tokens[:, 1:]


def _entropy(probabilities: Array) -> float:
    """−Σ p log p in nats, over all entries."""
    xp = namespace(probabilities)
    return -float(xp.sum(probabilities * xp.log(xp.where(probabilities > 0, probabilities, 1.0))))
