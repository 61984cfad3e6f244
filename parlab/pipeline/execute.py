"""A schedule, executed on arrays: the same data that is simulated runs on any world."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parlab.arguments import checked, instance
from parlab.arrays import Array, is_array, namespace, owning_buffer, to_host
from parlab.nn.counting import arrays_in
from parlab.nn.stage import Gradients, Stage, add_gradients
from parlab.pipeline.action_costs import Costs
from parlab.pipeline.actions import Action
from parlab.pipeline.arguments import EXECUTION_RULES
from parlab.pipeline.dependencies import action_table
from parlab.pipeline.schedule import Schedule
from parlab.pipeline.steps import Receive, Step, receives, step_name, steps_of
from parlab.world import Comm, Request

OnGradients = Callable[[int, int, Gradients], None]
Cell = tuple[int, int]  # a stage and a microbatch


@checked(EXECUTION_RULES)
def run_schedule(
    comm: Comm,
    schedule: Schedule,
    stages: Sequence[Stage] | Mapping[int, Stage],
    inputs: Sequence[Array],
    targets: Sequence[Array],
    *,
    costs: Costs | None = None,
    like: Array | None = None,
    on_gradients: OnGradients | None = None,
    loss_scale: float = 1.0,
) -> tuple[float | None, Gradients]:
    """One training step: this rank's part of `schedule`.

    Each microbatch counts by the size of its targets, so that loss and gradients are those of the whole batch at once.
    The values that actions leave for each other are counted as held: `activation` and `gradient` (handed to a stage of
    the same rank; `received` from another), `cache` from F to B or I, `pending` from I to W. After its actions, a rank
    that shares stages with others exchanges its part of their gradients: the simulated timeline does not show that.

    Args:
        schedule: one row for each rank of `comm`.
        stages: `stages[s]` is stage s: all of them, or a dict with those that this rank holds. The last one's
            `forward(x, targets)` gives the mean loss, and its `backward_input` takes the loss's weight in the whole.
        inputs: of the first stage, one a microbatch.
        targets: of the last stage, one a microbatch.
        costs: how long each action takes on the simulated clock, in seconds; the cluster says how long a transfer
            takes. None: actions take no time.
        like: an array with the shape and dtype of the arrays that pass from stage to stage. None: this rank finds out:
            it sends one row of the first microbatch through the stages before its own, so `stages` must have them.
        on_gradients: called with `(stage, microbatch, gradients)` after each B and W. These gradients are then neither
            summed nor exchanged nor returned; they are held, as `new gradients`, until they die. None: they are summed.
        loss_scale: the gradients, not the loss, are multiplied by this, so that small ones survive in float16.

    Returns:
        The loss, on the rank that has the last stage, else None (its part of the loss, where two ranks share that
        stage); and the gradients of this rank's stages by name, summed in the order in which the schedule makes them,
        over all ranks that hold the stage (DualPipe). A weight that stages of different ranks share (a tied table) has
        a part of its gradient on each.

    Raises:
        ValueError: the schedule cannot run, or does not fit the ranks, the microbatches or the stages.
    """
    table = action_table(schedule)
    _check(comm, schedule, stages, inputs, targets)
    atomic = costs is not None and costs.pair is not None
    seconds = None if costs is None else _seconds_of(costs, schedule.num_stages)
    rank = _Rank(comm, schedule, stages, inputs, targets, like, on_gradients, loss_scale)
    to_post = deque(receives(table, comm.rank, atomic))
    for number, step in enumerate(steps_of(schedule.ranks[comm.rank], atomic)):
        while to_post and to_post[0].after == number:
            rank.post(to_post.popleft())
        for action in step:
            rank.receive(action)
        with comm.compute(step_name(step), seconds=seconds(step) if seconds else None):
            results = [rank.perform(action) for action in step]
        for action in step:
            rank.deliver(action, results.pop(0))
    rank.wait_for_sends()
    if on_gradients is None:
        rank.sum_over_holders()
    return rank.host_loss(), rank.gradients


def _seconds_of(costs: Costs, num_stages: int) -> Callable[[Step], float]:
    """How long a step takes on the simulated clock."""
    by_kind = costs.by_kind(num_stages)
    together = None if costs.pair is None else costs.per_stage("pair", num_stages)

    def seconds(step: Step) -> float:
        kind, stage, _ = step[0]
        return together[stage] if together is not None and len(step) == 2 else by_kind[kind][stage]

    return seconds


class _Rank:
    """An interpreter of actions, with the values that they leave for each other.

    A value is referred to from one place only, and a local name that holds it is deleted as soon as it is used, so that
    memory dies, and is seen to die, at a fixed place.
    """

    def __init__(
        self,
        comm: Comm,
        schedule: Schedule,
        stages: Sequence[Stage] | Mapping[int, Stage],
        inputs: Sequence[Array],
        targets: Sequence[Array],
        like: Array | None,
        on_gradients: OnGradients | None,
        loss_scale: float,
    ) -> None:
        self.comm, self.schedule, self.stages, self.like = comm, schedule, stages, like
        self.inputs, self.targets, self.loss_scale = inputs, targets, loss_scale
        self.on_gradients = on_gradients
        self.last = schedule.num_stages - 1
        self.loss: Any = None
        self.gradients: Gradients = {}
        self.names: dict[int, set[str]] = {}  # of the gradients of each stage
        self.sends: list[Request] = []
        self.requests: dict[Action, Request] = {}  # by the action that needs the message
        self.activations: dict[Cell, Any] = {}  # the input of each forward
        self.received_gradients: dict[Cell, Any] = {}  # of the output of each forward
        self.caches: dict[Cell, Any] = {}
        self.pendings: dict[Cell, Any] = {}
        self.input_shapes: dict[Cell, tuple[int, ...]] = {}
        self.outputs_like: dict[Cell, Array] = {}  # shape and dtype of the gradient that comes back
        self.templates: dict[Any, Array] = {}
        self.given = {id(owning_buffer(x)) for x in [*inputs, *targets]}

    # Actions: one method a kind

    def perform(self, action: Action) -> Array | None:
        """Do an action; returns what the neighbouring stage needs of it."""
        by_kind = {"F": self.forward, "B": self.backward, "I": self.backward_input, "W": self.backward_weight}
        return by_kind[action.kind](action.stage, action.microbatch)

    def forward(self, stage: int, microbatch: int) -> Array | None:
        cell, of_stage = (stage, microbatch), self.stages[stage]
        x = self.activations.pop(cell) if stage > 0 else self.inputs[microbatch]
        self.input_shapes[cell] = tuple(x.shape)
        if stage == self.last:
            loss, cache = of_stage.forward(x, self.targets[microbatch])  # type: ignore[call-arg]
            self.add_loss(microbatch, loss)
            y = None
        else:
            y, cache = of_stage.forward(x)
            self.outputs_like[cell] = self._template(y.shape, y)
        del x
        self.caches[cell] = self._held("cache", cache)
        return y

    def backward(self, stage: int, microbatch: int) -> Array | None:
        of_stage = self.stages[stage]
        if hasattr(of_stage, "backward"):  # which may do the two parts at once, or free the one before the other
            dx, gradients = self._backward_through(stage, microbatch, "backward")
        else:
            dx, pending = self._backward_through(stage, microbatch, "backward_input")
            gradients = of_stage.backward_weight(pending)
        self._take(stage, microbatch, gradients)
        return dx

    def backward_input(self, stage: int, microbatch: int) -> Array | None:
        dx, pending = self._backward_through(stage, microbatch, "backward_input")
        self.pendings[stage, microbatch] = self._held("pending", pending)
        return dx

    def backward_weight(self, stage: int, microbatch: int) -> None:
        pending = self.pendings.pop((stage, microbatch))
        self._take(stage, microbatch, self.stages[stage].backward_weight(pending))

    def _backward_through(self, stage: int, microbatch: int, method: str) -> tuple[Array | None, Any]:
        """`(dx, pending)` of a stage, or `(dx, gradients)`: the gradient of its output and its cache are used up."""
        cell = stage, microbatch
        dy = self.received_gradients.pop(cell) if stage < self.last else self._weight(microbatch) * self.loss_scale
        cache = self.caches.pop(cell)
        dx, rest = getattr(self.stages[stage], method)(dy, cache)
        shape = self.input_shapes.pop(cell)
        if stage > 0 and tuple(dx.shape) != shape:
            raise ValueError(
                f"stage {stage}, microbatch {microbatch}: {method} gave shape {tuple(dx.shape)} for an input "
                f"of shape {shape}"
            )
        return dx, rest

    # Messages: receives are posted ahead; sends are waited for at the end, when all have long been taken

    def post(self, receive: Receive) -> None:
        """Post a receive before its message is needed."""
        _, stage, microbatch = action = receive.action
        like = self._input_like(stage, microbatch) if action.kind == "F" else self.outputs_like.pop((stage, microbatch))
        self.requests[action] = self.comm.irecv(receive.peer, like, label=str(receive.source))

    def receive(self, action: Action) -> None:
        """Wait for the message that an action needs, if it needs one."""
        if action in self.requests:
            values = self.activations if action.kind == "F" else self.received_gradients
            values[action.stage, action.microbatch] = self.requests.pop(action).wait()

    def deliver(self, action: Action, value: Array | None) -> None:
        """Send what an action made to the rank of the stage that needs it, or keep it here for that stage."""
        kind, stage, microbatch = action
        neighbour = stage + 1 if kind == "F" else stage - 1
        if kind == "W" or not 0 <= neighbour <= self.last:
            return
        peer = self.schedule.rank_of(neighbour, microbatch)
        if peer != self.comm.rank:
            self.sends.append(self.comm.isend(value, peer, label=str(action)))
        elif kind == "F":
            self.activations[neighbour, microbatch] = self._held("activation", value)
        else:
            self.received_gradients[neighbour, microbatch] = self._held("gradient", value)

    def wait_for_sends(self) -> None:
        """All have been taken when a rank's last action is done, or will be."""
        for request in self.sends:
            request.wait()

    # Loss and gradients

    def add_loss(self, microbatch: int, loss: Any) -> None:
        """In float64, and where the loss is: a number that the host looks at is one that it waits for."""
        if is_array(loss):
            xp = namespace(loss)
            loss = xp.astype(xp.asarray(loss), xp.float64)
        self.loss = (0.0 if self.loss is None else self.loss) + self._weight(microbatch) * loss

    def host_loss(self) -> float | None:
        """The loss as a number; None on a rank without the last stage."""
        return None if self.loss is None else to_host(self.loss)

    def _take(self, stage: int, microbatch: int, gradients: Gradients) -> None:
        if self.on_gradients is not None:
            self.comm.hold("new gradients", *arrays_in(gradients))
            self.on_gradients(stage, microbatch, gradients)
        else:
            self.names.setdefault(stage, set()).update(gradients)
            self.gradients = add_gradients(self.gradients, gradients)

    def sum_over_holders(self) -> None:
        """A rank that shares stages with others sends them its part of the gradients; all add in the same order."""
        shared: dict[tuple[int, ...], set[str]] = {}
        for stage, names in self.names.items():
            shared.setdefault(self.schedule.holders(stage), set()).update(names)
        for ranks, names in sorted(shared.items()):
            own = {name: self.gradients[name] for name in sorted(names)}
            peers = [rank for rank in ranks if rank != self.comm.rank]
            arriving = {rank: self.comm.irecv(rank, own, label="gradients") for rank in peers}
            leaving = [self.comm.isend(own, rank, label="gradients") for rank in peers]
            parts = {self.comm.rank: own} | {rank: request.wait() for rank, request in arriving.items()}
            for request in leaving:
                request.wait()
            total: Gradients = {}
            for rank in ranks:
                total = add_gradients(total, parts[rank])
            self.gradients |= total

    def _weight(self, microbatch: int) -> float:
        """The part of a microbatch in the loss of the whole batch."""
        return self.targets[microbatch].size / sum(target.size for target in self.targets)

    # Memory

    def _held(self, name: str, value: Any) -> Any:
        """`value`, whose arrays count as held from now on; the caller's own inputs and targets do not."""
        for array in arrays_in(value):
            if id(owning_buffer(array)) not in self.given:
                self.comm.hold(name, array)
        return value

    def _input_like(self, stage: int, microbatch: int) -> Array:
        if self.like is None:
            self.like = _one_row_through(self.stages, stage, self.inputs[0])
        return self._template((self.inputs[microbatch].shape[0], *self.like.shape[1:]), self.like)

    def _template(self, shape: tuple[int, ...], like: Array) -> Array:
        """An array that only tells its shape and dtype."""
        key = (tuple(shape), like.dtype)
        if key not in self.templates:
            self.templates[key] = namespace(like).empty(key[0], dtype=like.dtype, device=like.device)
        return self.templates[key]


def _one_row_through(stages: Sequence[Stage] | Mapping[int, Stage], stage: int, x: Array) -> Array:
    x = x[:1, ...]
    for before in range(stage):
        try:
            x, _ = stages[before].forward(x)
        except (KeyError, IndexError):
            raise ValueError(
                f"like=None: without stage {before} this rank cannot tell what comes to stage {stage}: pass an "
                "array with the shape and dtype of what passes from stage to stage"
            ) from None
    return x


def _check(
    comm: Comm,
    schedule: Schedule,
    stages: Sequence[Stage] | Mapping[int, Stage],
    inputs: Sequence[Array],
    targets: Sequence[Array],
) -> None:
    if comm.size != schedule.num_ranks:
        raise ValueError(f"schedule has {schedule.num_ranks} ranks, comm has {comm.size}: they must be the same")
    for name, given in (("inputs", inputs), ("targets", targets)):
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
        if stage not in range(schedule.num_stages) or not hasattr(of_stage, "forward"):
            number = f"the schedule has {schedule.num_stages}"
            raise ValueError(f"stages[{stage!r}]={of_stage!r:.60}: {number}, each with forward and backward_input")
