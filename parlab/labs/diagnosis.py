"""The exercise 07.find_bug: the name of a silent bug, from checks that cost little."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.exercise import Exercise
from parlab.labs.silent_bugs import BUGS, HEADS, MODELS, NONE, PRICES, SEES, Suspect
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong

MOST = 5  # the price of a diagnosis
ALIKE = 11  # the seed of a batch of long prompts on which a mean of means makes the norm as large as counted copies do
OVERLAP = {HEADS: 22, "ends not summed": 17}  # seeds of long prompts: norms of one as of the other bug


@dataclass(frozen=True)
class BugCase:
    """A suspect."""

    bug: str
    seed: int = 0
    size: int = 1  # the answer is no rank program
    long_prompts: bool = False

    def __str__(self) -> str:
        rows = ", on long prompts" if self.long_prompts else ""
        return "a right trainer" if self.bug == NONE else f"a trainer whose bug is {self.bug!r}{rows}"


def _how(case: BugCase) -> tuple[int, bool]:
    """The seed of the model and the batch, and whether its prompts are long."""
    return case.seed if case.long_prompts else case.seed % MODELS, case.long_prompts


_PATIENT: ContextVar[Suspect] = ContextVar("patient")


def _ask(check: str) -> Any:
    """Ask the patient of this trial. It is no variable of this function, so an answer cannot read it out of there."""
    return _PATIENT.get().ask(check)


def _try_find_bug(trial: Trial, case: BugCase) -> list[str]:
    patient = Suspect(case.bug, *_how(case))
    _PATIENT.set(patient)
    found = trial.called(_ask)
    asked = ", ".join(f"{check} ({PRICES[check]})" for check in patient.asked) or "nothing"
    if not isinstance(found, str) or found not in (NONE, *BUGS):
        known = ", ".join(map(repr, (*BUGS, NONE)))
        raise Wrong(f"returned {found!r:.60}, expected one of {known}")
    if found != case.bug:
        raise Wrong(f"returned {found!r} after asking for {asked}", f"likely cause: {_likely(case, found, patient)}")
    if patient.price > MOST:
        raise Wrong(
            f"found it, after asking for {asked}: {patient.price} in all, at most {MOST}",
            f"likely cause: {_too_dear(case.bug, patient.asked)}",
        )
    return [f"the last diagnosis asked for {asked}: {patient.price} of {MOST}"]


def _likely(case: BugCase, found: str, patient: Suspect) -> str:
    """Why another bug, or none, was named."""
    bug, asked = case.bug, list(dict.fromkeys(patient.asked))
    blind = f"{' and '.join(asked)} cannot see"
    if not asked:
        return "nothing was asked, so it is a guess"
    if bug == NONE:
        if not set(asked) & set(SEES[found]):
            return f"{blind} {found!r}: another check can, and it comes out right here"
        return "all of its checks come out right; such a trainer has no bug: 'none'"
    told = [check for check in asked if _tells(check, bug, found)]
    if found == NONE:
        return f"{told[0]!r} saw it" if told else f"{blind} this bug: another check can"
    if told:
        here, there = (_answer(one.ask(told[0])) for one in (Suspect(bug, *_how(case)), Suspect(found, *_how(case))))
        return f"{told[0]!r} tells the two apart: here it is {here}, with {found!r} {there}"
    size = " (the size of a wrong norm depends on the model)" if "norm" in asked else ""
    return f"so far {found!r} fits as well{size}: ask for a check that tells the two apart"


def _tells(check: str, bug: str, other: str) -> bool:
    """Whether a check has another answer for another bug, or none, on every model. The size of a wrong norm is none."""
    seen = check in SEES.get(bug, ())
    if seen != (check in SEES.get(other, ())):
        return True
    names = check in ("copies", "gradients")
    return seen and bug != other and (names or (check == "norm" and "extra mean" in (bug, other)))


def _answer(said: Any) -> str:
    """The answer of a check, in short."""
    wrong = [name for name, error in said.items() if error] if isinstance(said, dict) else said
    if not isinstance(wrong, list):
        return f"{wrong:.4g}"
    if not wrong or isinstance(wrong[0], float):
        return "[]" if not wrong else f"[{wrong[0]:.4g}, ...]"
    return f"[{wrong[0]!r}" + (f", and {len(wrong) - 1} more]" if len(wrong) > 1 else "]")


def _too_dear(bug: str, asked: list[str]) -> str:
    """Why a right answer costs too much."""
    twice = next((check for check in asked if asked.count(check) > 1), None)
    if twice:
        return f"{twice!r} is asked for more than once: keep its answer"
    for many in range(1, len(asked)):
        if all(other == bug or any(_tells(check, bug, other) for check in asked[:many]) for other in (NONE, *BUGS)):
            if sum(PRICES[check] for check in asked[:many]) < MOST:
                return f"after {' and '.join(asked[:many])} the bug is certain: return its name then"
            break
    dear = max(asked, key=lambda check: PRICES[check])
    return f"{dear!r} is asked for before checks that cost less and tell as much"


def _draw(random: np.random.Generator, size: int) -> BugCase:
    return BugCase((NONE, *BUGS)[int(random.integers(len(BUGS) + 1))])


FIND_BUG = Exercise(
    "07.find_bug",
    "find_bug(ask)",
    [
        *(
            BugCase(bug)
            for bug in ("ends not summed", NONE, "norms not summed", HEADS, *list(BUGS)[:2], "copies counted")
        ),
        BugCase("mean of means", seed=ALIKE, long_prompts=True),
        *(BugCase(bug, seed, long_prompts=True) for bug, seed in OVERLAP.items()),
    ],
    _try_find_bug,
    _draw,
    solved_by=("parlab.labs.find_bug",),
)
EXERCISES = (FIND_BUG,)
