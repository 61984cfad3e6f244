"""A schedule, executed on arrays: the same data that is simulated runs on any world."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from parlab.arguments import instance, positive
from parlab.arrays import Array, is_array, to_host
from parlab.nn.cross_entropy import IGNORED, number_of_targets
from parlab.nn.stage import Gradients, Stage, add_gradients
from parlab.pipeline.costs import Costs
from parlab.pipeline.dependencies import action_table
from parlab.pipeline.interpreter import Interpreter
from parlab.pipeline.schedule import Schedule
from parlab.pipeline.steps import Step, receives, steps_of
from parlab.world import Comm
from parlab.world.units import several


def run_schedule(
    comm: Comm,
    schedule: Schedule,
    stages: Sequence[Stage] | Mapping[int, Stage],
    inputs: Sequence[Array],
    targets: Sequence[Array],
    *,
    costs: Costs | None = None,
    like: Array | None = None,
    loss_scale: float = 1.0,
    target_tokens: float | None = None,
) -> tuple[float | None, Gradients]:
    """One training step: this rank's part of `schedule`.

    Each microbatch counts by its target tokens, so that loss and gradients are those of the whole batch at once.
    The values that actions leave for each other are counted as held: `activation` and `gradient` (handed to a stage of
    the same rank; `received` from another), `cache` from F to B or I, `pending` from I to W. After its actions, a rank
    that shares stages with others exchanges its part of their gradients: the simulated timeline does not show that.

    Args:
        schedule: one row for each rank of `comm`.
        stages: `stages[s]` is stage s: all of them, or a dict with those that this rank holds. The last one's
            `forward(x, targets)` gives the mean loss, and its backward takes the loss's weight in the whole.
        inputs: of the first stage, one a microbatch.
        targets: of the last stage, one a microbatch; a token whose target is `IGNORED` (`parlab.nn`) does not count.
        costs: how long each action takes on the simulated clock, in seconds; the cluster says how long a transfer
            takes. None: actions take no time.
        like: an array with the shape and dtype of the arrays that pass from stage to stage. None: this rank finds out:
            it sends one row of the first microbatch through the stages before its own, so `stages` must have them.
        loss_scale: the gradients, not the loss, are multiplied by this, so that small ones survive in float16.
        target_tokens: the number by which the losses of all target tokens are divided; None: that of `targets`. Where
            ranks have other rows of one batch, a mean over ranks needs the batch's target tokens / ranks.

    Returns:
        The loss, on the rank that has the last stage, else None (its part of the loss, where two ranks share that
        stage); and the gradients of this rank's stages by name, summed in the order in which the schedule makes them,
        over all ranks that hold the stage (DualPipe). A weight that stages of different ranks share (a tied table) has
        a part of its gradient on each.

    Raises:
        ValueError: the schedule cannot run, or does not fit the ranks, the microbatches or the stages; no target token.
    """
    instance("schedule", schedule, Schedule)
    table = action_table(schedule)
    _check(comm, schedule, stages, inputs, targets)
    if costs is not None:
        instance("costs", costs, Costs)
    positive("loss_scale", loss_scale, finite=True)
    atomic = costs is not None and costs.pair is not None
    shares = _shares(targets, target_tokens)
    interpreter = Interpreter(comm, schedule, stages, inputs, targets, like, loss_scale, shares)
    steps = steps_of(schedule.ranks[comm.rank], atomic)
    interpreter.run(steps, receives(table, comm.rank, atomic), _seconds_of(costs, schedule.num_stages))
    _sum_over_holders(interpreter)
    loss = None if interpreter.loss is None else to_host(interpreter.loss)
    return loss, interpreter.gradients


def _shares(targets: Sequence[Array], target_tokens: float | None) -> list[float]:
    """The part of each microbatch's mean loss in the loss of the whole batch: by its target tokens."""
    counts = [number_of_targets(target) for target in targets]
    if target_tokens is None and not any(counts):
        raise ValueError(f"targets are all {IGNORED}, the ignored label: a mean needs at least one target token")
    return [count / (target_tokens or sum(counts)) for count in counts]


def _seconds_of(costs: Costs | None, num_stages: int) -> Callable[[Step], float | None]:
    """How long a step takes on the simulated clock; None: no time."""
    if costs is None:
        return lambda step: None
    by_kind = costs.by_kind(num_stages)
    together = None if costs.pair is None else costs.per_stage("pair", num_stages)

    def seconds(step: Step) -> float:
        kind, stage, _ = step[0]
        return together[stage] if together is not None and len(step) == 2 else by_kind[kind][stage]

    return seconds


def _sum_over_holders(interpreter: Interpreter) -> None:
    """Sum the gradients of each stage over the ranks that hold it. All ranks add in the same order."""
    comm = interpreter.comm
    names_of_holders: dict[tuple[int, ...], set[str]] = {}
    for stage, names in interpreter.gradient_names.items():
        names_of_holders.setdefault(interpreter.schedule.holders(stage), set()).update(names)
    for holders, names in sorted(names_of_holders.items()):
        own = {name: interpreter.gradients[name] for name in sorted(names)}
        peers = [peer for peer in holders if peer != comm.rank]
        arriving = {peer: comm.irecv(peer, own, label="gradients") for peer in peers}
        leaving = [comm.isend(own, peer, label="gradients") for peer in peers]
        parts = {comm.rank: own} | {peer: request.wait() for peer, request in arriving.items()}
        for request in leaving:
            request.wait()
        total: Gradients = {}
        for holder in holders:
            total = add_gradients(total, parts[holder])
        interpreter.gradients |= total


def _check(
    comm: Comm,
    schedule: Schedule,
    stages: Sequence[Stage] | Mapping[int, Stage],
    inputs: Sequence[Array],
    targets: Sequence[Array],
) -> None:
    """Refuse numbers of ranks, microbatches or stages that are not the schedule's."""
    if comm.size != schedule.num_ranks:
        found = f"schedule has {several(schedule.num_ranks, 'rank')}, comm has {comm.size}"
        raise ValueError(f"{found}: they must be the same")
    for name, given in (("inputs", inputs), ("targets", targets)):
        if not isinstance(given, Iterable) or isinstance(given, Mapping | str):
            raise ValueError(f"{name}={given!r:.60}: must be a list of arrays, one a microbatch")
        for place, array in enumerate(given):
            if not is_array(array):
                raise ValueError(f"{name}[{place}]={array!r:.60}: must be an array")
        if len(given) != schedule.num_microbatches:
            raise ValueError(
                f"{name} has {len(given)} microbatches, the schedule {schedule.num_microbatches}: give one array each"
            )
    held = dict(enumerate(stages)) if isinstance(stages, Sequence) else stages
    instance("stages", held, Mapping)
    for stage in range(schedule.num_stages):
        if comm.rank in schedule.holders(stage) and stage not in held:
            raise ValueError(f"stages: stage {stage} of rank {comm.rank} is missing")
    for stage, of_stage in held.items():
        if stage not in range(schedule.num_stages) or not hasattr(of_stage, "backward"):
            number = f"the schedule has {schedule.num_stages}"
            raise ValueError(f"stages[{stage!r}]={of_stage!r:.60}: {number}, each with forward and backward")
