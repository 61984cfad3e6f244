"""Wrong interpreters and stages, each caught by what the parity and clock tests hold."""

import math

from parlab.pipeline import (
    Costs,
    execute,
    gpipe,
    one_f_one_b,
    run_schedule,
    simulate,
    zb_h1,
)
from parlab.world import Cluster, run
from tests.pipeline.models import SECOND, TanhStage, error, serial, tanh_model, together


class Forgetful(TanhStage):
    def backward_weight(self, pending):
        return super().backward_weight(pending) if pending[1].sum() > 0 else {self.name: 0.0 * self.weights[self.name]}


def test_mutant_that_drops_a_microbatchs_weight_gradient_is_seen():
    model, batch, target, inputs, targets = tanh_model(3, 6)
    _, expected = serial(model, batch, target)
    model[1] = Forgetful(model[1].weights, "w1")
    _, gradients = together(run(run_schedule, 3, zb_h1(3, 6), model, inputs, targets).results)
    assert [name for name in expected if error(gradients[name], expected[name]) > 1e-12] == ["w1"]


def test_mutant_without_the_microbatchs_weight_in_the_loss_gives_m_times_the_gradients(monkeypatch):
    monkeypatch.setattr(execute, "_shares", lambda targets, target_tokens: [1.0] * len(targets))
    model, batch, target, inputs, targets = tanh_model(3, 6)
    _, gradients = together(run(run_schedule, 3, one_f_one_b(3, 6), model, inputs, targets).results)
    _, expected = serial(model, batch, target)
    assert all(error(gradients[name], 6 * expected[name]) <= 1e-12 for name in expected)


def test_mutant_that_posts_each_receive_only_when_it_is_needed_is_late(monkeypatch):
    def late(table, rank, atomic):
        steps = execute.steps_of(table.schedule.ranks[rank], atomic)
        number = {action: n for n, step in enumerate(steps) for action in step}
        in_turn = [r._replace(after=number[r.action]) for r in honest(table, rank, atomic)]
        return sorted(in_turn, key=lambda receive: receive.after)

    honest = execute.receives
    monkeypatch.setattr(execute, "receives", late)
    model, _, _, inputs, targets = tanh_model(4, 8)
    costs = Costs(transfer=1)
    cluster = Cluster.uniform(latency=1, bandwidth=math.inf, ports=None)
    timeline = run(run_schedule, 4, gpipe(4, 8), model, inputs, targets, costs=costs, cluster=cluster).timeline
    assert timeline.makespan > simulate(gpipe(4, 8), costs).makespan * SECOND
