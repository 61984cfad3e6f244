"""The exercise 10.mean_gradient: which ranks' gradients of an expert add up; and a training with that bug."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.arguments import flag, instance
from parlab.labs.counts import ranks_in_words
from parlab.labs.difference import difference, possible
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong, need_messages
from parlab.nn import AdamW, MarkovSource, Mixtral, MixtralConfig
from parlab.train import Mesh, Trainer
from parlab.train.step import TrainResult
from parlab.world import Comm, run

TOLERANCE = 1e-12


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
    G: Any = trainer.parts.replica.G
    reduced, mesh = G.reduced, trainer.parts.job.mesh
    G.reduced = lambda: {
        block: x * mesh.ep.size if G.layouts[block].group is mesh.edp else x for block, x in reduced().items()
    }


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
    alike, everyone = own[rank % case.ep :: case.ep], own.sum(axis=0)
    if of_expert:
        every = "mesh.data" if case.ep < case.size else "mesh.data or mesh.ep"
        those, right = "mesh.edp, the ranks with this expert", alike.sum(axis=0)
        causes = {
            f"{case.ep} times too large: the gradient holds the tokens of all {case.ep} ranks of ep already, so "
            "divide by dp · cp, not by edp": alike.mean(axis=0),
            f"summed over {every}, with ranks of other experts; those with this one are mesh.edp": everyone / case.size,
        }
    else:
        those, right = "mesh.data, whose ranks all have this weight", everyone
        causes = {
            "summed over a part of mesh.data: every rank of it has this weight": alike.sum(axis=0) / case.size,
            "the mean over a part of mesh.data: every rank of it has this weight": alike.mean(axis=0),
        }
    causes |= {
        f"divided, and nothing was summed: the sum is over {those}, and all_reduce returns it": own[rank] / case.size,
        "divide by the number of ranks of dp and cp": right,
    }
    return possible((cause, not difference(found, value)) for cause, value in causes.items())


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

EXERCISES = (MEAN_GRADIENT,)
