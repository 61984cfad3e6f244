"""Figures and widgets: what a run, a schedule or an error looks like."""

from parlab.views import display
from parlab.views.bubbles import bubble_and_memory
from parlab.views.crossings import all_reduce_times
from parlab.views.exchange import ORDERS, explore_two_ranks, two_ranks
from parlab.views.explore_all_reduce import collectives, explore_collectives
from parlab.views.explore_ring import explore_ring_masks, explore_ring_overlap, ring_overlap
from parlab.views.explore_schedules import explore_schedules, pipeline
from parlab.views.explore_tensor import explore_tensor, tensor
from parlab.views.explore_zero import explore_zero, zero
from parlab.views.gather_overlap import gather_overlap
from parlab.views.gradients import wrong_gradients
from parlab.views.guess import predict, prediction
from parlab.views.memory import held_bytes
from parlab.views.model_state import model_state_memory
from parlab.views.progress import progress
from parlab.views.ring_growth import ring_growth
from parlab.views.ring_masks import ring_masks
from parlab.views.ring_steps import ring_steps
from parlab.views.schedules import compare_schedules, schedule
from parlab.views.shard_owners import shard_owners
from parlab.views.step_memory import step_memory
from parlab.views.tensor import sharded_block
from parlab.views.tensor_memory import kept_activations
from parlab.views.timeline_panels import compare_timelines
from parlab.views.timelines import timeline
from parlab.views.traffic import bytes_sent
from parlab.views.waits_for import deadlock
from parlab.views.zero_traffic import zero_traffic

__all__ = [
    "ORDERS",
    "all_reduce_times",
    "bubble_and_memory",
    "bytes_sent",
    "collectives",
    "compare_schedules",
    "compare_timelines",
    "deadlock",
    "explore_collectives",
    "explore_ring_masks",
    "explore_ring_overlap",
    "explore_schedules",
    "explore_tensor",
    "explore_two_ranks",
    "explore_zero",
    "gather_overlap",
    "held_bytes",
    "kept_activations",
    "model_state_memory",
    "pipeline",
    "predict",
    "prediction",
    "progress",
    "ring_growth",
    "ring_masks",
    "ring_overlap",
    "ring_steps",
    "schedule",
    "shard_owners",
    "sharded_block",
    "step_memory",
    "tensor",
    "timeline",
    "two_ranks",
    "wrong_gradients",
    "zero",
    "zero_traffic",
]

display.register()
