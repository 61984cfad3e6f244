"""Figures and widgets: what a run, a schedule or an error looks like."""

from parlab.views import display
from parlab.views.crossings import all_reduce_times
from parlab.views.exchange import ORDERS, explore_two_ranks, two_ranks
from parlab.views.explore_all_reduce import collectives, explore_collectives
from parlab.views.guess import predict, prediction
from parlab.views.memory import held_bytes
from parlab.views.timelines import timeline
from parlab.views.traffic import bytes_sent
from parlab.views.waits_for import deadlock

__all__ = [
    "ORDERS",
    "all_reduce_times",
    "bytes_sent",
    "collectives",
    "deadlock",
    "explore_collectives",
    "explore_two_ranks",
    "held_bytes",
    "predict",
    "prediction",
    "timeline",
    "two_ranks",
]

display.register()
