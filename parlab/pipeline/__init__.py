"""Pipeline parallelism: a schedule is data, which is validated, simulated, drawn and executed."""

from parlab.pipeline.actions import Action, Pair
from parlab.pipeline.execute import run_schedule
from parlab.pipeline.partition import partition
from parlab.pipeline.schedule import Schedule
from parlab.pipeline.schedules import (
    gpipe,
    interleaved_one_f_one_b,
    looped_bfs,
    naive,
    one_f_one_b,
    zb_h1,
    zb_h2,
)
from parlab.pipeline.simulate import Costs, simulate
from parlab.pipeline.timeline import Idle, ScheduleTimeline
from parlab.pipeline.validate import validate

__all__ = [
    "Action",
    "Costs",
    "Idle",
    "Pair",
    "Schedule",
    "ScheduleTimeline",
    "gpipe",
    "interleaved_one_f_one_b",
    "looped_bfs",
    "naive",
    "one_f_one_b",
    "partition",
    "run_schedule",
    "simulate",
    "validate",
    "zb_h1",
    "zb_h2",
]
