"""Right answers to the exercises of notebook 08, in several styles each."""

import numpy as np

from tests.labs import answers
from tests.labs.right_answers import of
from tests.labs.right_answers_07 import RIGHT

__all__ = ["RIGHT"]


@of("08.memory")
def with_numpy(params, kept, d, p, t, m, zero, bytes_each):
    cut = np.where(np.arange(1, 4) <= zero, d, 1)
    return np.array(bytes_each)[::-1] / cut @ np.full(3, params / (p * t)) + np.minimum(p, m) * kept / (p * t)


@of("08.memory")
def of_each_stage_the_most(params, kept, d, p, t, m, zero, bytes_each):
    states = answers.memory(params, 0, d, p, t, m, zero, bytes_each)
    return max(states + min(m, p - rank) * kept / (p * t) for rank in range(p))


@of("08.step_time")
def as_work_over_what_is_not_bubble(work, nbytes, speed, d, p, t, v, batch):
    m = batch // d
    busy = m * (work + (t - 1) * nbytes / speed) / (p * t)
    return busy * (1 + (p - 1) / (v * m))


@of("08.step_time")
def as_a_number_of_numpy(work, nbytes, speed, d, p, t, v, batch):
    return np.float64(answers.step_time(work, nbytes, speed, d, p, t, v, batch))
