"""The exercises of notebook 10: dispatch and combine; an expert's mean gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.arguments import flag, instance
from parlab.labs.counts import ITEMSIZE, bytes_sent, messages, ranks_in_words
from parlab.labs.difference import difference, likely, possible
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong, need_messages
from parlab.nn import AdamW, MarkovSource, Mixtral, MixtralConfig
from parlab.train import Mesh, Trainer
from parlab.train.step import TrainResult
from parlab.world import Comm, run

TOLERANCE = 1e-12
EXPERT_GUESSES = {  # the usual wrong guesses of lesson 10, and the reasoning that leads there
    "experts travel": (7.0, "each GPU sends its four experts once"),
    "units": (10.0, "40 rows on four ranks"),
    "64 GPUs": (64.0, "64 times the GPUs"),
    "copies": (7.0, "8 experts, of which one in 8 is at home"),
}


# Dispatch and combine


@dataclass(frozen=True)
class MixtureCase:
    """Tokens on each of `size` ranks, of which each goes to k of the experts."""

    size: int
    num_experts: int
    k: int
    tokens: int
    seed: int = 0

    def __str__(self) -> str:
        experts = "1 expert" if self.num_experts == 1 else f"{self.num_experts} experts"
        tokens = "1 token" if self.tokens == 1 else f"{self.tokens} tokens"
        return f"{ranks_in_words(self.size)}, {experts}, k = {self.k}, {tokens} a rank"

    @property
    def own(self) -> int:
        """Experts of a rank."""
        return self.num_experts // self.size


HIDDEN = 3
RAISED = {  # by what an error says: what is behind it
    "out of bounds for axis 0 with size": "order numbers pairs, and x has one row a token: the token of pair p is "
    "p // k, x[order // k]",
    "which has the experts": "an expert answers on its own rank: rows travel to it, and expert_of_each(comm, table) "
    "numbers those that came",
    "whole numbers are needed, how many rows": "table[comm.rank] and table[:, comm.rank] are [rank, which of its "
    "experts]: sum(axis=1) adds up over experts",
    "entered different collectives: rank 0 calls all_gather(int64": "np.bincount(..., minlength=num_experts) counts "
    "experts that nobody chose, too",
    "boolean index did not match": "other rows came than this rank's pairs; the expert of each row that came is "
    "expert_of_each(comm, table)",
    "could not be broadcast to indexing result": "the answers lie where the experts are; as many come back as left by "
    "exchange_rows(comm, answers, received, sent)",
    "match in the order in which they are posted": "what comes from rank i is table[i, comm.rank], what goes to rank j "
    "is table[comm.rank, j]",
}


def _try_mixture(trial: Trial, case: MixtureCase) -> list[str]:
    P, N, k, T = case.size, case.num_experts, case.k, case.tokens
    draw = np.random.default_rng([case.seed, P, N, k, T])
    x = draw.normal(size=(P, T, HIDDEN))
    liked = draw.normal(size=N)  # some experts are chosen more often
    chosen = np.argsort(-(liked + draw.normal(size=(P, T, N))), axis=-1)[..., :k]  # [P, T, k]
    gates = draw.uniform(0.2, 1.0, size=(P, T, k))  # their sum is not 1, so that they count with k = 1, too
    weights = draw.normal(size=(N, HIDDEN, HIDDEN))

    def program(comm: Comm) -> Any:
        def expert(number: Any, rows: Any) -> Any:
            if number not in range(comm.rank * case.own, (comm.rank + 1) * case.own):
                own = f"{comm.rank * case.own} to {(comm.rank + 1) * case.own - 1}"
                raise ValueError(f"expert({number}, rows) on rank {comm.rank}, which has the experts {own}")
            return np.tanh(np.asarray(rows) @ weights[number])

        given = x[comm.rank].copy(), chosen[comm.rank].copy(), gates[comm.rank].copy()
        return trial.answer(comm, *given, N, expert)

    try:
        done = trial.ran(program, P)
    except Wrong as wrong:
        idle = [rank for rank in wrong.stopped if not (chosen // case.own == rank).any()]
        if idle and "need at least one array" in str(wrong):
            wrong.args += (f"likely cause: no token of any rank chose an expert of rank {idle[0]}: it gets 0 rows",)
        else:
            come = {int((chosen // case.own == rank).sum()) for rank in range(P)} - {T, T * k}
            back = any(f"adds up to {T * k}, and {rows} rows are given" in str(wrong) for rows in come)
            there = any(f"adds up to {rows}, and {T * k} rows are given" in str(wrong) for rows in come)
            raised = [(cause, said in str(wrong)) for said, cause in RAISED.items()]
            turned = [
                ("on the way back sent and received change places", back),
                ("on the way there table[comm.rank] is sent, and table[:, comm.rank] comes", there),
            ]
            wrong.args += tuple(likely([*raised, *turned]))
        raise
    for rank, found in enumerate(done.results):
        right = _mixed(x[rank], chosen[rank], gates[rank], weights)
        if said := difference(found, right, rtol=TOLERANCE, atol=TOLERANCE):
            same = isinstance(found, np.ndarray) and found.shape == right.shape and found.dtype == right.dtype
            causes = _likely_mixture(rank, found, case, x, chosen, gates, weights) if same else []
            shapes = [(T, k, HIDDEN), *([(T * k, HIDDEN)] if k > 1 else [])]
            if isinstance(found, np.ndarray) and found.shape in shapes:
                causes = [
                    "likely cause: one row a pair; the k answers of a token, times their gates, add up to one row"
                ]
            raise Wrong(f"rank {rank} {said}", *causes)
    need_messages(done)
    ranks = chosen // case.own  # [P, T, k]
    leaving = [int((ranks[rank] != rank).sum()) for rank in range(P)]
    coming = [int((ranks == rank).sum() - (ranks[rank] == rank).sum()) for rank in range(P)]
    allowed = [ITEMSIZE * (HIDDEN * (s + r) + (P - 1) * N) for s, r in zip(leaving, coming, strict=True)]
    sent = bytes_sent(done)
    worst = max(range(P), key=lambda rank: sent.numbers[rank] - allowed[rank])
    return [
        messages(done).check(
            "3(P − 1)", 3 * (P - 1), "counts, rows and answers travel once each, and nothing to oneself"
        ),
        type(sent)(f"bytes that rank {worst} sends", [sent.numbers[worst]]).check(
            "8E(S + R) + 8N(P − 1)",
            allowed[worst],
            "own rows, gates, or every pair's expert travel too: only rows of others' experts (S), answers (R) and N "
            "counts need to",
        ),
    ]


def _mixed(x: Any, chosen: Any, gates: Any, weights: Any) -> Any:
    """The sum over slots, [T, E], with the experts `chosen` [T, k]."""
    answers = np.tanh(np.einsum("te,tkef->tkf", x, weights[chosen]))
    return (answers * gates[..., None]).sum(axis=1)


def _likely_mixture(
    rank: int, found: Any, case: MixtureCase, x: Any, chosen: Any, gates: Any, weights: Any
) -> list[str]:
    """The mistakes that give this result."""
    own_x, own, gate = x[rank], chosen[rank], gates[rank]
    flat, k = own.reshape(-1), case.k
    order = np.argsort(flat, kind="stable")
    by_pair = gate.reshape(-1, 1)
    answers = _answers(own_x[np.arange(flat.size) // k], flat, weights)  # by pair
    unsorted = _answers(own_x[np.argsort(order) // k], flat, weights)
    of_tokens, last = np.empty_like(answers), np.zeros_like(own_x)
    of_tokens[order] = answers[order] * by_pair
    last[order // k] += (answers * by_pair)[order]  # NumPy keeps the last of a token's rows
    met, returned = (of_ranks[rank] for of_ranks in _taken_as_sorted(chosen, case, x, weights))

    def summed(weighed: Any) -> Any:
        return weighed.reshape(*own.shape, HIDDEN).sum(axis=1)

    with_2 = _answers(own_x[np.arange(flat.size) // 2 % len(own_x)], flat, weights)
    mistakes = {
        "the token of pair p is p // k, where k is chosen.shape[1], and not always 2": (
            summed(with_2 * by_pair) if k != 2 else np.nan
        ),
        "the gates are in it twice: on the way there and on the way back": summed(answers * by_pair**2),
        "the gates are missing": summed(answers),
        "rows are sorted by rank and not by expert: an expert reads its neighbour's rows": _mixed(
            own_x, _sorted_by_rank(own, case), gate, weights
        ),
        "the answers come back sorted by expert, and were not put back at their tokens": summed(
            answers[order] * by_pair
        ),
        "the answers are put back by answers[order]; the pair order[i] has answer i: slots[order] = answers": summed(
            answers[order][order] * by_pair
        ),
        "y[tokens] += rows keeps the last of a token's rows alone; np.add.at adds them all": last,
        "the answers are sorted by expert, the gates by token: the gate of another pair weighs an answer": summed(
            of_tokens
        ),
        "the rows received lie by source, and by expert only within a source: an expert reads its neighbour's rows": (
            _mixed(own_x, met.reshape(own.shape), gate, weights)
        ),
        "the answers lie by expert when they go back, and the rows came by source: an answer takes its row's place": (
            summed(returned * by_pair)
        ),
        "the rows that leave are not sorted: row i is of the token of pair order[i], x[order // k]": summed(
            unsorted * by_pair
        ),
        "a token's answers times its gates are averaged; they are added": summed(answers * by_pair) / k,
    }
    if np.allclose(found, summed(answers * by_pair), rtol=1e-6, atol=1e-6):
        return ["likely cause: it is nearly right: float32 on the way, or a constant that is too coarse"]
    return possible((cause, np.allclose(found, y, rtol=1e-9, atol=1e-9)) for cause, y in mistakes.items())


def _answers(rows: Any, experts: Any, weights: Any) -> Any:
    """Of each row, by its expert."""
    return np.tanh(np.einsum("pe,pef->pf", rows, weights[experts]))


def _sorted_by_rank(chosen: Any, case: MixtureCase) -> Any:
    """The experts that rows meet if they are sorted by rank alone, and taken apart as if they were sorted by expert."""
    flat = chosen.reshape(-1).copy()
    for rank in range(case.size):
        there = np.flatnonzero(flat // case.own == rank)
        flat[there] = np.sort(flat[there])
    return flat.reshape(chosen.shape)


def _taken_as_sorted(chosen: Any, case: MixtureCase, x: Any, weights: Any) -> tuple[Any, Any]:
    """Of each rank's pairs the experts [P, T·k] that they meet if a rank takes all that came as sorted by expert; and
    the answers [P, T·k, E] that come back if they lie by expert, and not at the places of their rows.
    """
    flat = chosen.reshape(case.size, -1)
    right = np.stack([_answers(np.repeat(x[rank], case.k, axis=0), flat[rank], weights) for rank in range(case.size)])
    met, returned = np.empty_like(flat), np.empty_like(right)
    for owner in range(case.size):
        pairs = [(source, pair) for source in range(case.size) for pair in np.argsort(flat[source], kind="stable")]
        came = [(source, pair) for source, pair in pairs if flat[source, pair] // case.own == owner]
        source, pair = np.array(came, int).reshape(-1, 2).T  # in the order in which they came
        again = np.argsort(flat[source, pair], kind="stable")
        met[source, pair] = flat[source, pair][again]
        returned[source, pair] = right[source[again], pair[again]]
    return met, returned


MIXTURE = Exercise(
    "10.mixture",
    "mixture(comm, x, chosen, gates, num_experts, expert)",
    [
        MixtureCase(*sizes)
        for sizes in (
            (2, 2, 1, 2),
            (2, 4, 2, 3),
            (1, 3, 2, 4),
            (3, 3, 1, 5),
            (3, 9, 4, 6),
            (4, 8, 2, 1),
            (4, 12, 1, 6),
            (5, 10, 3, 8),
            (8, 16, 4, 12),
        )
    ],
    _try_mixture,
    lambda random, size: MixtureCase(
        size, size * int(random.integers(1, 4)), int(random.integers(1, size)), int(random.integers(1, 20))
    ),
    on_ranks=True,
    solved_by=(
        "parlab.experts.mixed_rows",
        "parlab.experts.dispatch",
        "parlab.experts.combine",
        "parlab.experts.ExpertParallel",
    ),
)


# The mean of an expert's gradient


@dataclass(frozen=True)
class ExpertMeshCase:
    """A mesh of dp × cp ranks, `ep` of which deal out the experts."""

    dp: int
    cp: int
    ep: int
    seed: int = 0

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.dp * self.cp

    def __str__(self) -> str:
        return f"{ranks_in_words(self.size)}, dp={self.dp}, cp={self.cp}, ep={self.ep}"


def mean_gradient(mesh: Mesh, of_expert: bool, gradient: Any) -> Any:
    """The gradient of the mean loss over dp · cp ranks, from this rank's: the exercise 10.mean_gradient.

    Args:
        mesh: of dp · cp ranks, ep of which deal out the experts.
        of_expert: whether the weight is an expert's; then its gradient holds the tokens of all ranks of ep.
        gradient: this rank's, of any shape; the result has the same.

    >>> import numpy as np
    >>> from parlab import run
    >>> run(lambda comm: mean_gradient(Mesh(comm, dp=4, ep=2), True, np.array([2.0])).tolist(), 4).results[0]
    [1.0]
    """
    alike = mesh.edp if of_expert else mesh.data
    return alike.all_reduce(gradient) / mesh.data.size


def ep_times_too_large(trainer: Trainer) -> None:
    """Plant the bug: an expert's gradient is divided by the size of its own group, edp, and not by dp · cp.

    Args:
        trainer: of a Mixtral, with ZeRO stage 2 on ep of 2 or more, before its first step; all ranks call this.

    Raises:
        ValueError: no trainer.

    >>> from parlab import run
    >>> from parlab.nn import AdamW, Mixtral, MixtralConfig
    >>> sizes = {"hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    >>> config = MixtralConfig(vocab_size=5, num_local_experts=2, num_experts_per_tok=1, **sizes)
    >>> def norm(comm, bug):
    ...     model = Mixtral.random(config, seed=0, dtype="float64", xp=np)
    ...     trainer = Trainer(Mesh(comm, dp=2, ep=2), model, AdamW(), zero=2)
    ...     if bug:
    ...         ep_times_too_large(trainer)
    ...     return trainer.step(np.array([[1, 2], [3, 4]]), np.array([[2, 3], [4, 0]])).norm
    >>> run(norm, 2, True).results[0] > run(norm, 2, False).results[0]
    True
    """
    instance("trainer", trainer, Trainer)
    replica: Any = trainer.parts.replica
    for gradients in replica._gradients.values():
        if gradients.comm is trainer.parts.mesh.edp:
            summed, ep = gradients.reduced, trainer.parts.mesh.ep.size
            gradients.reduced = lambda summed=summed, ep=ep: ep * summed()


def thirty_steps(*, bug: bool) -> list[TrainResult]:
    """Train a small Mixtral for 30 steps on two ranks that share its experts: loss and norm of each step.

    Args:
        bug: the gradients of experts are twice too large, see `ep_times_too_large`.

    Raises:
        ValueError: `bug` is no bool.

    >>> thirty_steps(bug=True)[0].norm > thirty_steps(bug=False)[0].norm
    True
    """
    flag("bug", bug)
    source = MarkovSource()  # letters, a little predictable
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "initializer_range": 0.3}
    config = MixtralConfig(vocab_size=source.vocab_size, **sizes, **experts)  # type: ignore[arg-type]

    def program(comm: Comm) -> list[TrainResult]:
        model = Mixtral.random(config, seed=2, dtype="float64", xp=np)
        trainer = Trainer(Mesh(comm, dp=2, ep=2), model, AdamW(lr=1e-2), zero=2)
        if bug:
            ep_times_too_large(trainer)
        batches = [source.batch(step, batch_size=8, length=32, xp=np) for step in range(30)]
        return [trainer.step(*batch) for batch in batches]

    return run(program, 2).results[0]


def _try_mean_gradient(trial: Trial, case: ExpertMeshCase) -> list[str]:
    draw = np.random.default_rng([case.seed, case.dp, case.cp, case.ep])
    drawn = draw.integers(-9, 10, size=(2, case.size, 4)).astype(float)  # [expert or not, rank, 4]

    def program(comm: Comm, of_expert: bool) -> Any:
        mesh = Mesh(comm, dp=case.dp, cp=case.cp, ep=case.ep)
        return trial.answer(mesh, of_expert, drawn[int(of_expert), comm.rank].copy())

    for of_expert in (False, True):
        done, own = trial.ran(program, case.size, of_expert), drawn[int(of_expert)]
        for rank, found in enumerate(done.results):
            alike = own[rank % case.ep :: case.ep].sum(axis=0)
            right = (alike if of_expert else own.sum(axis=0)) / case.size
            if said := difference(found, right, rtol=TOLERANCE, atol=TOLERANCE):
                kind = "an expert" if of_expert else "a weight that every rank has"
                raise Wrong(
                    f"rank {rank}, gradient of {kind}: {said}", *_likely_mean(found, own, rank, of_expert, case)
                )
        if case.size > 1 and (not of_expert or case.ep < case.size):
            need_messages(done)
    return ["every weight: the mean over dp · cp ranks' losses"]


def _likely_mean(found: Any, own: Any, rank: int, of_expert: bool, case: ExpertMeshCase) -> list[str]:
    if not isinstance(found, np.ndarray) or found.shape != own[rank].shape:
        return []
    if found.dtype != own.dtype:
        return [f"likely cause: {found.dtype} on the way: the result has the dtype of `gradient`"]
    alike, everyone = own[rank % case.ep :: case.ep], own.sum(axis=0)
    group = own[rank - rank % case.ep : rank - rank % case.ep + case.ep].sum(axis=0)
    causes: dict[str, Any] = {}
    if of_expert:
        every = "mesh.data" if case.ep < case.size else "mesh.data or mesh.ep"
        causes = {
            f"{case.ep} times too large: the gradient holds the tokens of all {case.ep} ranks of ep already, so "
            "divide by dp · cp, not by edp": alike.mean(axis=0),
            f"summed over {every}, with ranks of other experts; those with this one are mesh.edp": everyone / case.size,
        }
        if case.ep > 1:  # of one rank, mesh.ep sums nothing
            causes["summed over mesh.ep, whose ranks have other experts; those with this one: mesh.edp"] = (
                group / case.size
            )
    else:
        causes = {
            "summed over a part of mesh.data: every rank of it has this weight": alike.sum(axis=0) / case.size,
            "the mean over a part of mesh.data: every rank of it has this weight": alike.mean(axis=0),
        }
    those = "mesh.edp, the ranks with this expert" if of_expert else "mesh.data, whose ranks all have this weight"
    if len(alike) > 1 or not of_expert:
        causes["nothing was summed"] = own[rank]
    causes |= {
        f"divided, and nothing was summed: the sum is over {those}, and all_reduce returns it": own[rank] / case.size,
        "divide by the number of ranks of dp and cp": alike.sum(axis=0) if of_expert else everyone,
    }
    right = (alike.sum(axis=0) if of_expert else everyone) / case.size
    wrong = {cause: value for cause, value in causes.items() if not np.allclose(value, right)}
    return possible((cause, np.allclose(found, value)) for cause, value in wrong.items())


def _draw_mesh(random: np.random.Generator, size: int) -> ExpertMeshCase:
    cp = int(random.choice([1, 2]))
    dp = -(-size // cp)
    return ExpertMeshCase(dp, cp, int(random.choice([n for n in range(1, dp * cp + 1) if dp * cp % n == 0])))


MEAN_GRADIENT = Exercise(
    "10.mean_gradient",
    "mean_gradient(mesh, of_expert, gradient)",
    [ExpertMeshCase(*sizes) for sizes in ((2, 1, 1), (2, 1, 2), (4, 1, 2), (2, 2, 2), (2, 3, 3), (4, 2, 8), (4, 2, 4))],
    _try_mean_gradient,
    _draw_mesh,
    on_ranks=True,
    solved_by=("parlab.labs.mean_gradient",),
)

EXERCISES = (MIXTURE, MEAN_GRADIENT)
