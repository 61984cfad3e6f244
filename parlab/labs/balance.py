"""The exercise 10.balanced: a router whose bias evens out the load without a loss; and a trainer that uses it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.arguments import instance
from parlab.arrays import asarray, namespace, to_numpy
from parlab.labs.difference import brief, difference, likely, possible
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong, explains
from parlab.nn.router import Router, balanced_bias
from parlab.nn.routing import Routing, expert_loads, route
from parlab.train import Trainer
from parlab.world import Comm

Step = tuple[Any, Any, Any]  # chosen [T, k], gates [T, k], the new bias [N]
Balance = Callable[[Any, Any, int, float], Step]  # (scores [T, N], bias [N], k, rate)
TOLERANCE = 1e-12


def balanced(scores: Any, bias: Any, k: int, rate: float) -> Step:
    """One step of a router that is balanced without a loss: the exercise 10.balanced.

    Source: Wang et al. 2024, "Auxiliary-loss-free load balancing strategy for mixture-of-experts", algorithm 1.

    Args:
        scores: `[T, N]`, of all tokens of the step.
        bias: `[N]`, added to the scores for the choice alone.
        k: experts a token.
        rate: γ, by which the bias of an expert moves up if its load is below the mean, and down if it is above.

    Returns:
        The experts `[T, k]`, their gates `[T, k]`, a softmax of the scores of these k, and the bias `[N]` for the next
        step.

    >>> chosen, gates, bias = balanced(np.array([[0.9, 0.1], [0.4, 0.2]]), np.zeros(2), 1, 0.1)
    >>> chosen.ravel().tolist(), gates.ravel().tolist(), bias.tolist()
    ([0, 0], [1.0, 1.0], [-0.1, 0.1])
    """
    routing = route(scores, np.eye(scores.shape[1]), k, bias=bias)
    return routing.chosen, routing.gates, balanced_bias(bias, expert_loads(routing, scores.shape[1]), rate)


def balance_by(trainer: Trainer, rule: Balance) -> None:
    """Let `rule` choose the experts, weigh them and move the biases of a trainer, in place of the library's.

    The scores of all ranks are gathered, so that every rank gives the rule the same ones, of all tokens of the step, in
    NumPy's arrays.

    Args:
        trainer: of a Mixtral on dp and ep alone, with one microbatch and a bias_rate.
        rule: as `balanced`.

    Raises:
        ValueError: another trainer.

    >>> from parlab import run
    >>> from parlab.nn import AdamW, Mixtral, MixtralConfig
    >>> from parlab.train import Mesh
    >>> sizes = {"hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    >>> config = MixtralConfig(vocab_size=5, num_local_experts=2, num_experts_per_tok=1, **sizes)
    >>> def program(comm):
    ...     model = Mixtral.random(config, seed=0, dtype="float64", xp=np)
    ...     trainer = Trainer(Mesh(comm, dp=2, ep=2), model, AdamW(), bias_rate=0.1)
    ...     balance_by(trainer, balanced)
    ...     trainer.step(np.array([[1, 2], [3, 4]]), np.array([[2, 3], [4, 0]]))
    ...     return [abs(bias) for bias in trainer.parts.model.routers[0].bias]
    >>> run(program, 2).results[0] in ([0.1, 0.1], [0.0, 0.0])
    True
    """
    instance("trainer", trainer, Trainer)
    job, routers = trainer.parts.job, trainer.parts.model.routers
    mesh, bias_rate = job.mesh, job.settings.bias_rate
    alone = max(mesh.pp.size, mesh.cp.size, mesh.tp.size) == job.schedule.num_microbatches == 1
    if not routers or not bias_rate or not alone:
        raise ValueError(
            f"trainer: a Mixtral on dp and ep alone is needed, with one microbatch and a bias_rate; this is "
            f"{job.config!r:.40} on pp={mesh.pp.size}, cp={mesh.cp.size}, tp={mesh.tp.size}, bias_rate={bias_rate}"
        )
    for router in routers.values():
        _balance_one(mesh.data, router, rule)


def _balance_one(comm: Comm, router: Router, rule: Balance) -> None:
    later = [router.bias]

    def routed(x: Any) -> Routing:
        own = x @ router.weights[router.name]  # [T, N]
        scores = to_numpy(comm.all_gather(own))
        chosen, gates, later[0] = rule(scores, np.array(router.bias), router.k, router.bias_rate)
        here = slice(comm.rank * own.shape[0], (comm.rank + 1) * own.shape[0])
        xp, device = namespace(x), x.device
        own_gates = asarray(np.asarray(gates)[here], xp, own.dtype, device)
        return Routing(asarray(np.asarray(chosen)[here], xp, xp.int64, device), own_gates, own, "softmax_chosen")

    def rebalance(loads: Any) -> None:
        router.counted, router.bias = [0] * router.num_experts, list(map(float, later[0]))

    router.routed, router.rebalance = routed, rebalance  # type: ignore[method-assign]


# The checker


@dataclass(frozen=True)
class BalanceCase:
    """Scores of T tokens for N experts: given, or drawn."""

    tokens: int
    num_experts: int
    k: int
    rate: float
    given: tuple[Any, Any] | None = None  # scores [T, N] and bias [N]
    seed: int = 0

    @property
    def size(self) -> int:
        """Its order among the cases: the number of experts."""
        return self.num_experts

    def __str__(self) -> str:
        if self.given:
            scores, bias = self.given
            return f"scores = {scores}, bias = {bias}, k = {self.k}, gamma = {self.rate:g}"
        return f"{self.tokens} tokens, {self.num_experts} experts, k = {self.k}, gamma = {self.rate:g}"

    def arrays(self) -> tuple[Any, Any]:
        """Scores [T, N], of which some experts have more than others, and the bias [N]."""
        if self.given:
            return np.array(self.given[0]), np.array(self.given[1])
        draw = np.random.default_rng([self.seed, self.tokens, self.num_experts, self.k])
        liked = draw.normal(size=self.num_experts)
        return liked + draw.normal(size=(self.tokens, self.num_experts)), draw.normal(size=self.num_experts)


def _try_balanced(trial: Trial, case: BalanceCase) -> list[str]:
    given = (*case.arrays(), case.k, case.rate)
    right = balanced(*given)
    chosen_by_few = int(right[0].max()) + 1  # as np.bincount counts without minlength
    with explains(f"({chosen_by_few},)" if chosen_by_few < case.num_experts else "(no such shape)", FEW):
        found = trial.called(*given)
    left = trial.left[1]
    _check_form(found, case)
    part, said = _first_wrong(found, right, case)
    if said:
        raise Wrong(said, *possible((cause, True) for cause in _likely(part, found, given, trial)))
    if not np.array_equal(left, given[1]):
        cause = "likely cause: bias += ... changes it in place: leave `bias` as it is, and return a new array"
        change = f": {given[1].tolist()} became {left.tolist()}" if left.size <= 8 else ""
        raise Wrong(f"the argument bias has changed{change}", cause)
    loads = np.bincount(right[0].ravel(), minlength=case.num_experts)
    return [f"loads of {min(loads)} to {max(loads)} tokens an expert, {loads.mean():g} on average"]


FEW = "nobody chose the last expert: np.bincount(..., minlength=N) counts it as 0"


def _check_form(found: Any, case: BalanceCase) -> None:
    """Refuse a result of a wrong form."""
    T, N, k = case.tokens, case.num_experts, case.k
    if not isinstance(found, tuple | list) or len(found) != 3:
        what = f"{len(found)} values" if isinstance(found, tuple | list) and found else _form(found)
        raise Wrong(f"returned {what}, expected three arrays: chosen [T, k], gates [T, k], the new bias [N]")
    for name, array, shape in zip(("chosen", "gates", "bias"), found, ((T, k), (T, k), (N,)), strict=True):
        form, types = ("whole numbers", "bhilqBHILQ") if name == "chosen" else ("float64", "d")
        if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype.char not in types:
            few = name == "bias" and isinstance(array, np.ndarray) and array.shape == (found[0].max() + 1,)
            raise Wrong(f"{name}: returned {_form(array)}, expected {form} of shape {shape}", *likely([(FEW, few)]))
        if name == "chosen" and not 0 <= array.min() <= array.max() < N:
            raise Wrong(f"chosen: returned experts {array.min()} to {array.max()}, there are 0 to {N - 1}")


def _first_wrong(found: Any, right: Step, case: BalanceCase) -> tuple[int, str]:
    """Which part of a result is wrong first (0 experts, 1 gates, 2 bias), and the line about it; "": none."""
    one, other = _by_expert(found), _by_expert(right)
    differs = (one[0] != other[0]).any(axis=1)
    if differs.any():
        token = int(np.argmax(differs))
        goes, should = (f"expert{'s' * (case.k > 1)} {' and '.join(map(str, by[0][token]))}" for by in (one, other))
        return 0, f"token {token} goes to {goes}, expected {should}"
    if said := difference(one[1], other[1], rtol=TOLERANCE, atol=TOLERANCE):
        return 1, f"gates: {said}{', the experts of a token in ascending order' if case.k > 1 else ''}"
    if said := difference(found[2], right[2], rtol=TOLERANCE, atol=TOLERANCE):
        loads = np.bincount(right[0].ravel(), minlength=case.num_experts)
        counted = f"; the loads are {loads.tolist()}, their mean is {loads.mean():g}" if loads.size <= 8 else ""
        return 2, f"bias: {said}{counted}"
    return 0, ""


def _form(array: Any) -> str:
    return f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else brief(array)


def _by_expert(step: Any) -> Step:
    """The same step, the experts of a token in ascending order."""
    order = np.argsort(step[0], axis=1, kind="stable")
    return np.take_along_axis(step[0], order, axis=1), np.take_along_axis(step[1], order, axis=1), step[2]


def _likely(part: int, found: Any, given: tuple[Any, ...], trial: Trial) -> list[str]:
    """The mistakes that give this part of the result, here and on larger cases; a rare one has no name, and none."""
    able = _explaining(part, found, given)
    for larger in LARGER:
        more = (*larger.arrays(), larger.k, larger.rate)
        with suppress(Wrong):
            again = trial.called(*more)
            named, able = able, []
            _check_form(again, larger)  # of a wrong form there: none of them
            able = [cause for cause in named if cause in _explaining(part, again, more)]
    return able


def _explaining(part: int, found: Any, given: tuple[Any, ...]) -> list[str]:
    """The causes of a wrong choice, of wrong gates or of a wrong bias, each an expression of the right rest."""
    scores, bias, k, g = given
    chosen, _, _ = balanced(*given)
    if part == 0:
        ranked = {
            "the bias is not in the choice: the best k of scores + bias are chosen": scores,
            "the bias is subtracted in the choice; it is added": scores - bias,
            "these are the worst k: argsort ascends": -scores - bias,
        }
        best = {cause: np.sort(np.argsort(-by, axis=1, kind="stable")[:, :k]) for cause, by in ranked.items()}
        return _equal(np.sort(found[0]), best)
    if part == 1:
        powers = np.exp(np.take_along_axis(scores, chosen, axis=1))
        biased, every = powers * np.exp(bias[chosen]), np.exp(scores).sum(axis=1, keepdims=True)
        weighed = {
            "the bias is in the gates: it is for the choice alone, and the gates are those of the scores": (
                biased / biased.sum(axis=1, keepdims=True)
            ),
            "the softmax is over all N experts; it is over the k chosen": powers / every,
            "a token's gates add up to 1: divide by their sum over its k experts": powers,
            "these are the scores; the gates are their softmax over the k": np.log(powers),
        }
        return _equal(_by_expert(found)[1], {why: _by_expert((chosen, x, bias))[1] for why, x in weighed.items()})
    load = np.bincount(chosen.ravel(), minlength=len(bias))
    few = np.bincount(chosen.ravel()) if chosen.max() in (0, len(bias) - 1) else load * np.nan  # else of another shape
    missing = load.mean() - load
    moved = {
        "the sign is turned around: an expert above the mean load needs a lower bias": bias - g * np.sign(missing),
        "nothing moved: the bias of the next step is asked for": bias,
        "this is the change alone: add it to the bias": g * np.sign(missing),
        "the bias moves by the size of what is missing; by its sign alone, times gamma": bias + g * missing,
        "gamma is missing: the bias moves by gamma, up or down": bias + np.sign(missing),
        "an expert with the mean load moves too; its bias stays, as sign(0) = 0": bias + np.where(missing > 0, g, -g),
        "the mean load is T · k/N, not T/N: each token counts for k experts": bias
        + g * np.sign(load.mean() / k - load),
        FEW: bias + g * np.sign(few.mean() - few),
    }
    return _equal(found[2], moved)


def _equal(found: Any, values: dict[str, Any]) -> list[str]:
    return [cause for cause, value in values.items() if np.allclose(found, value, rtol=1e-9, atol=1e-12)]


LARGER = (BalanceCase(9, 5, 3, 0.3), BalanceCase(12, 8, 2, 0.7, seed=16))
TWO = ([[0.9, 0.1], [0.4, 0.2]], [0.0, 0.0])
EVEN = ([[0.9, 0.1], [0.4, 0.2]], [-0.3, 0.3])
THREE = ([[2.0, 1.0, 0.7], [1.5, 0.2, 1.0], [0.9, 1.2, 0.1]], [-0.5, 0.0, 0.5])

BALANCED = Exercise(
    "10.balanced",
    "balanced(scores, bias, k, gamma)",
    [
        BalanceCase(2, 2, 1, 0.1, TWO),
        BalanceCase(2, 2, 1, 0.1, EVEN),
        BalanceCase(3, 3, 2, 0.2, THREE),
        BalanceCase(4, 4, 1, 0.05, seed=1),
        BalanceCase(9, 5, 3, 0.3),
        BalanceCase(40, 8, 2, 0.05),
        BalanceCase(64, 16, 4, 0.001),
    ],
    _try_balanced,
    lambda random, size: BalanceCase(
        int(random.integers(2, 40)), size + 1, int(random.integers(1, size + 1)), float(random.choice([0.01, 0.1, 0.5]))
    ),
    solved_by=("parlab.labs.balanced", "parlab.nn.routing.route", "parlab.nn.router.balanced_bias"),
)

EXERCISES = (BALANCED,)
