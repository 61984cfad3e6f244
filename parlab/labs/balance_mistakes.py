"""The usual mistakes in 10.balanced: each alone, as a whole step of the router, with its cause in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Step = tuple[Any, Any, Any]  # chosen [T, k], gates [T, k], the new bias [N]
Balance = Callable[[Any, Any, int, float], Step]  # (scores [T, N], bias [N], k, rate)


def _best(scores: Any, k: int) -> Any:
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def _load(chosen: Any, N: int) -> Any:
    return np.bincount(chosen.ravel(), minlength=N).astype(float)


def _shares(weights: Any) -> Any:
    return weights / weights.sum(axis=1, keepdims=True)


def _of(scores: Any, chosen: Any) -> Any:
    return np.take_along_axis(scores, chosen, axis=1)


def _toward(load: Any, mean: Any = None) -> Any:
    return np.sign((load.mean() if mean is None else mean) - load)


def _missing(load: Any) -> Any:
    return load.mean() - load


def _right(scores: Any, bias: Any, k: int, rate: float) -> Step:
    return _choosing(lambda scores, bias, k, rate: scores + bias)(scores, bias, k, rate)


def _choosing(by: Callable[[Any, Any, int, float], Any]) -> Balance:
    """A step that chooses the best k of `by(scores, bias, k, rate)`."""

    def step(scores: Any, bias: Any, k: int, rate: float) -> Step:
        chosen = _best(by(scores, bias, k, rate), k)
        gates = _shares(np.exp(_of(scores, chosen)))
        load = _load(chosen, len(bias))
        return chosen, gates, bias + rate * _toward(load)

    return step


def _weighing(by: Callable[[Any, Any, Any], Any]) -> Balance:
    """A step whose gates are `by(scores, bias, chosen)`."""

    def step(scores: Any, bias: Any, k: int, rate: float) -> Step:
        chosen, _, moved = _right(scores, bias, k, rate)
        return chosen, by(scores, bias, chosen), moved

    return step


def _moving(by: Callable[[Any, Any, float, Any, Any], Any]) -> Balance:
    """A step whose new bias is `by(bias, load, rate, chosen, gates)`."""

    def step(scores: Any, bias: Any, k: int, rate: float) -> Step:
        chosen, gates, _ = _right(scores, bias, k, rate)
        return chosen, gates, by(bias, _load(chosen, len(bias)), rate, chosen, gates)

    return step


def _token_by_token(so_far: bool) -> Balance:
    """The bias moves after each token, by that token's load or by that of all so far."""

    def step(scores: Any, bias: Any, k: int, rate: float) -> Step:
        chosen, load = [], np.zeros(len(bias))
        for of_token in scores:
            chosen.append(_best(of_token[None] + bias, k)[0])
            load = load * so_far + _load(chosen[-1], len(bias))
            bias = bias + rate * _toward(load)
        return np.array(chosen), _shares(np.exp(_of(scores, np.array(chosen)))), bias

    return step


def _of_the_plain_choice(scores: Any, bias: Any, k: int, rate: float) -> Step:
    chosen, gates, _ = _right(scores, bias, k, rate)
    load = _load(_best(scores, k), len(bias))
    return chosen, gates, bias + rate * _toward(load)


def _numbered_from_1(scores: Any, bias: Any, k: int, rate: float) -> Step:
    chosen, gates, moved = _right(scores, bias, k, rate)
    return chosen + 1, gates, moved


def _once_a_token(b: Any, load: Any, g: float, chosen: Any, gates: Any) -> Any:
    return b + g * sum(_toward(_load(of_token, len(b))) for of_token in chosen)


def _counted_short(b: Any, load: Any, g: float, chosen: Any, gates: Any) -> Any:
    """By np.bincount without minlength; nothing moves where the shapes do not fit, and NumPy says so."""
    short = np.bincount(chosen.ravel())
    return b + g * _toward(short) if len(short) in (1, len(b)) else np.full(len(b), np.nan)


def _of_gates(b: Any, load: Any, g: float, chosen: Any, gates: Any) -> Any:
    return b + g * _toward(np.bincount(chosen.ravel(), weights=gates.ravel(), minlength=len(b)))


def _first_moved(scores: Any, bias: Any, k: int, rate: float) -> Any:
    return scores + bias + rate * _toward(_load(_best(scores, k), len(bias)))


MISTAKES: list[tuple[str, Balance]] = [
    (
        "the bias is not in the choice: the best k of scores + bias are chosen",
        _choosing(lambda scores, bias, k, g: scores),
    ),
    ("the bias is subtracted in the choice; it is added", _choosing(lambda scores, bias, k, g: scores - bias)),
    ("these are the worst k: argsort ascends", _choosing(lambda scores, bias, k, g: -scores - bias)),
    (
        "the bias moves after each token; it moves once a step, by the loads of all tokens",
        _token_by_token(so_far=False),
    ),
    ("the bias moves after each token, by the loads so far; it moves once a step", _token_by_token(so_far=True)),
    (
        "the new bias chooses; it is for the next step, and this step's choice has the old one",
        _choosing(lambda scores, bias, k, g: scores + _right(scores, bias, k, g)[2]),
    ),
    (
        "the bias moves first, by the loads without it; choose with the bias as it came, then move it",
        _choosing(_first_moved),
    ),
    ("the bias alone chooses; add it to the scores", _choosing(lambda scores, bias, k, g: 0 * scores + bias)),
    (
        "the bias is added to probabilities; add it to the scores, before any softmax",
        _choosing(lambda scores, bias, k, g: _shares(np.exp(scores)) + bias),
    ),
    (
        "the bias is in the gates: it is for the choice alone, and the gates are those of the scores",
        _weighing(lambda scores, bias, chosen: _shares(np.exp(_of(scores + bias, chosen)))),
    ),
    (
        "the bias is in the gates, and they are a softmax over all N; over the k chosen, of scores alone",
        _weighing(lambda scores, bias, chosen: _of(_shares(np.exp(scores + bias)), chosen)),
    ),
    (
        "the softmax is over all N experts; it is over the k chosen",
        _weighing(lambda scores, bias, chosen: _of(_shares(np.exp(scores)), chosen)),
    ),
    (
        "a token's gates add up to 1: divide by their sum over its k experts",
        _weighing(lambda scores, bias, chosen: np.exp(_of(scores, chosen))),
    ),
    (
        "divided by the sum over all tokens; over the k of each token, axis=1",
        _weighing(lambda scores, bias, chosen: np.exp(_of(scores, chosen)) / np.exp(_of(scores, chosen)).sum()),
    ),
    (
        "divided by the sum over the tokens, axis=0; over the k of each token, axis=1",
        _weighing(lambda scores, bias, chosen: np.exp(_of(scores, chosen)) / np.exp(_of(scores, chosen)).sum(axis=0)),
    ),
    ("these are the scores; the gates are their softmax over the k", _weighing(lambda s, bias, c: _of(s, c))),
    (
        "these are scores + bias; the gates are a softmax over the k, of scores alone",
        _weighing(lambda scores, bias, chosen: _of(scores + bias, chosen)),
    ),
    (
        "the gates stand in another order than the experts of their token",
        _weighing(lambda scores, bias, chosen: _shares(np.exp(_of(scores, np.sort(chosen))))),
    ),
    (
        "every expert weighs the same here; the gates are a softmax of the scores of the k",
        _weighing(lambda scores, bias, chosen: np.full(chosen.shape, 1 / chosen.shape[1])),
    ),
    (
        "the sign is turned around: an expert above the mean load needs a lower bias",
        _moving(lambda b, load, g, *_: b - g * _toward(load)),
    ),
    ("nothing moved: the bias of the next step is asked for", _moving(lambda b, load, g, *_: b)),
    ("this is the change alone: add it to the bias", _moving(lambda b, load, g, *_: g * _toward(load))),
    (
        "the bias moves by the size of what is missing; by its sign alone, times gamma",
        _moving(lambda b, load, g, *_: b + g * _missing(load)),
    ),
    (
        "the bias moves by the size, and with its sign turned around; gamma · sign(mean − load)",
        _moving(lambda b, load, g, *_: b - g * _missing(load)),
    ),
    (
        "the bias moves by the size, as a share of the mean; by its sign alone",
        _moving(lambda b, load, g, *_: b + g * _missing(load) / load.mean()),
    ),
    (
        "the bias moves by the size, as a share of all pairs; by its sign alone",
        _moving(lambda b, load, g, *_: b + g * _missing(load) / load.sum()),
    ),
    ("gamma is missing: the bias moves by gamma, up or down", _moving(lambda b, load, g, *_: b + _toward(load))),
    ("the bias moves once a token; it moves once a step, by the loads of all tokens", _moving(_once_a_token)),
    (
        "an expert with the mean load moves too; its bias stays, as sign(0) = 0",
        _moving(lambda b, load, g, *_: b + g * np.where(_missing(load) > 0, 1, -1)),
    ),
    (
        "an expert with the mean load moves too; its bias stays, as sign(0) = 0",
        _moving(lambda b, load, g, *_: b + g * np.where(_missing(load) >= 0, 1, -1)),
    ),
    (
        "the loads are those of the choice without the bias; count the experts that were chosen with it",
        _of_the_plain_choice,
    ),
    (
        "a token's first expert alone is counted; all k are its load",
        _moving(lambda b, load, g, chosen, _: b + g * _toward(_load(chosen[:, 0], len(b)))),
    ),
    ("the gates are added up; the load is how many tokens chose the expert", _moving(_of_gates)),
    (
        "the median of the loads is not their mean",
        _moving(lambda b, load, g, *_: b + g * _toward(load, np.median(load))),
    ),
    (
        "the mean is that of the experts with a load; of all N",
        _moving(lambda b, load, g, *_: b + g * _toward(load, load[load > 0].mean())),
    ),
    (
        "the mean is rounded down; it is T · k/N, and need not be whole",
        _moving(lambda b, load, g, *_: b + g * _toward(load, load.sum() // len(b))),
    ),
    (
        "the loads are shares here, and the mean is one of numbers: compare like with like",
        _moving(lambda b, load, g, *_: b + g * _toward(load / load.sum(), load.mean())),
    ),
    (
        "the loads are shares here, and the mean is one of numbers: compare like with like",
        _moving(lambda b, load, g, chosen, _: b + g * _toward(load / len(chosen), load.mean())),
    ),
    (
        "the mean load as a share of the tokens is k/N, not 1/N: each token counts for k experts",
        _moving(lambda b, load, g, chosen, _: b + g * _toward(load, len(chosen) / len(b))),
    ),
    ("experts are numbered from 0", _numbered_from_1),
    ("nobody chose the last expert: np.bincount(..., minlength=N) counts it as 0", _moving(_counted_short)),
    (
        "the mean load is T · k/N, not T/N: each token counts for k experts",
        _moving(lambda b, load, g, chosen, _: b + g * _toward(load, len(chosen) / len(b))),
    ),
    (
        "only experts below the mean move; those above go down",
        _moving(lambda b, load, g, *_: b + g * np.maximum(_toward(load), 0)),
    ),
    (
        "only experts above the mean move; those below go up",
        _moving(lambda b, load, g, *_: b + g * np.minimum(_toward(load), 0)),
    ),
    (
        "the mean was taken off the biases: that chooses alike, and is not asked for",
        _moving(lambda b, load, g, *_: b + g * (_toward(load) - _toward(load).mean())),
    ),
    (
        "the mean was taken off the biases: that chooses alike, and is not asked for",
        _moving(lambda b, load, g, *_: b + g * _toward(load) - (b + g * _toward(load)).mean()),
    ),
]
