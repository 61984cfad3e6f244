"""One rank's interpreter of a schedule: the loop, a method for each kind of action, and the messages between stages.

Activations x, y and gradients dy, dx pass between stages. All are [b, s, E]: b sequences a microbatch, s tokens, E
features. Invariant: F keeps a cache until B or I of the same stage and microbatch; I keeps a pending value until W.

Source: GPipe (Huang et al., 2019), section 2.3; for I and W, Zero Bubble (Qi et al., 2024), section 2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from parlab.arrays import Array, is_array, namespace, owning_buffer
from parlab.nn.counting import arrays_in
from parlab.nn.stage import Gradients, Stage, add_gradients
from parlab.pipeline.actions import Action
from parlab.pipeline.schedule import Schedule
from parlab.pipeline.steps import Receive, Step, step_name
from parlab.world import Comm, Request

Visit = tuple[int, int]  # of a microbatch to a stage: (stage, microbatch)


class Interpreter:
    """Performs the actions of one rank, and keeps the values that they leave for each other.

    Each value has one reference, deleted after use. So its memory is freed, and logged as freed, at a fixed point.
    """

    def __init__(
        self,
        comm: Comm,
        schedule: Schedule,
        stages: Sequence[Stage] | Mapping[int, Stage],
        inputs: Sequence[Array],
        targets: Sequence[Array],
        like: Array | None,
        loss_scale: float,
        shares: Sequence[float],
    ) -> None:
        self.comm, self.schedule, self.stages, self.like = comm, schedule, stages, like
        self.inputs, self.targets, self.loss_scale = inputs, targets, loss_scale
        self.shares = shares  # of each microbatch's mean loss in the loss of the whole batch
        self.last = schedule.num_stages - 1
        self.loss: Any = None
        self.gradients: Gradients = {}
        self.gradient_names: dict[int, set[str]] = {}  # of each stage
        self.sends: list[Request] = []
        self.requests: dict[Action, Request] = {}  # by the action that needs the message
        self.activations: dict[Visit, Any] = {}  # the input of each forward
        self.received_gradients: dict[Visit, Any] = {}  # of the output of each forward
        self.caches: dict[Visit, Any] = {}
        self.pendings: dict[Visit, Any] = {}
        self.input_shapes: dict[Visit, tuple[int, ...]] = {}
        self.outputs_like: dict[Visit, Array] = {}  # shape and dtype of the gradient that comes back
        self.templates: dict[Any, Array] = {}
        self.given = {id(owning_buffer(x)) for x in [*inputs, *targets]}

    def run(self, steps: Iterable[Step], receives: Iterable[Receive], seconds: Callable[[Step], float | None]) -> None:
        """Run this rank's steps in order.

        Args:
            receives: in the order in which they are posted, each before a step (`steps.receives`).
            seconds: how long a step takes on the simulated clock; None: no time.
        """
        to_post = deque(receives)
        for number, step in enumerate(steps):
            while to_post and to_post[0].after == number:
                self.post(to_post.popleft())
            for action in step:
                self.receive(action)
            with self.comm.compute(step_name(step), seconds=seconds(step)):
                results = [self.perform(action) for action in step]
            for action in step:
                self.deliver(action, results.pop(0))  # popped: the list must not keep what the send frees
        for request in self.sends:  # each completes: its receiver has posted, or will post, the receive
            request.wait()

    # Actions: one method a kind

    def perform(self, action: Action) -> Array | None:
        """Do an action; returns what the neighbouring stage needs of it."""
        by_kind = {"F": self.forward, "B": self.backward, "I": self.backward_input, "W": self.backward_weight}
        return by_kind[action.kind](action.stage, action.microbatch)

    def forward(self, stage: int, microbatch: int) -> Array | None:
        """F: y, which the next stage needs. The cache is kept until B or I."""
        visit = stage, microbatch
        x = self.activations.pop(visit) if stage > 0 else self.inputs[microbatch]
        self.input_shapes[visit] = tuple(x.shape)
        if stage == self.last:
            loss, cache = self.stages[stage].forward(x, self.targets[microbatch])  # type: ignore[call-arg]
            self.add_loss(microbatch, loss)
            y = None
        else:
            y, cache = self.stages[stage].forward(x)
            self.outputs_like[visit] = self._template(y.shape, y)
        del x
        self.caches[visit] = self._held("cache", cache)
        return y

    def backward(self, stage: int, microbatch: int) -> Array | None:
        """B: dx, which the stage before needs, and the gradients of the weights."""
        dx, gradients = self._backward_through(stage, microbatch, "backward")
        self.add_weight_gradients(stage, gradients)
        return dx

    def backward_input(self, stage: int, microbatch: int) -> Array | None:
        """I: dx alone. W finds the rest among the pending."""
        dx, pending = self._backward_through(stage, microbatch, "backward_input")
        self.pendings[stage, microbatch] = self._held("pending", pending)
        return dx

    def backward_weight(self, stage: int, microbatch: int) -> None:
        """W: the gradients of the weights, which nobody waits for."""
        pending = self.pendings.pop((stage, microbatch))
        self.add_weight_gradients(stage, self.stages[stage].backward_weight(pending))

    def _backward_through(self, stage: int, microbatch: int, method: str) -> tuple[Array | None, Any]:
        """`(dx, pending)` of a stage, or `(dx, gradients)`. The gradient of its output and its cache are deleted."""
        visit = stage, microbatch
        dy = self.received_gradients.pop(visit) if stage < self.last else self.shares[microbatch] * self.loss_scale
        cache = self.caches.pop(visit)
        dx, rest = getattr(self.stages[stage], method)(dy, cache)
        shape = self.input_shapes.pop(visit)
        if stage > 0 and tuple(dx.shape) != shape:
            raise ValueError(
                f"stage {stage}, microbatch {microbatch}: {method} gave shape {tuple(dx.shape)} for an input "
                f"of shape {shape}"
            )
        return dx, rest

    # Messages: a rank posts its receives early, and waits for its sends after its last action

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

    # Loss and gradients

    def add_loss(self, microbatch: int, loss: Any) -> None:
        """Add in float64, on the loss's own device: the host would have to wait for a number that it reads."""
        if is_array(loss):
            xp = namespace(loss)
            loss = xp.astype(xp.asarray(loss), xp.float64)
        self.loss = (0.0 if self.loss is None else self.loss) + self.shares[microbatch] * loss

    def add_weight_gradients(self, stage: int, gradients: Gradients) -> None:
        """Add the gradients of one microbatch; none of a stage that has handed them on itself, as a trainer's does."""
        if gradients:
            self.gradient_names.setdefault(stage, set()).update(gradients)
            self.gradients = add_gradients(self.gradients, gradients)

    # Memory

    def _held(self, name: str, value: Any) -> Any:
        """`value`, whose arrays count as held from now on; the caller's inputs and targets do not."""
        for array in arrays_in(value):
            if id(owning_buffer(array)) not in self.given:
                self.comm.hold(name, array)
        return value

    def _input_like(self, stage: int, microbatch: int) -> Array:
        """The template of a stage's input: the sequences of this microbatch, else as `like`."""
        if self.like is None:
            self.like = _one_row_through(self.stages, stage, self.inputs[0])
        return self._template((self.inputs[microbatch].shape[0], *self.like.shape[1:]), self.like)

    def _template(self, shape: tuple[int, ...], like: Array) -> Array:
        """An array with this shape and the dtype of `like`. Its numbers do not matter."""
        key = (tuple(shape), like.dtype)
        if key not in self.templates:
            self.templates[key] = namespace(like).empty(key[0], dtype=like.dtype, device=like.device)
        return self.templates[key]


def _one_row_through(stages: Sequence[Stage] | Mapping[int, Stage], stage: int, x: Array) -> Array:
    """One sequence of the first stage's input, as it comes to `stage`: this rank runs all stages before."""
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
