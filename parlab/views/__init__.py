"""Figures and widgets: what a run, a schedule or an error looks like."""

from parlab.views import display
from parlab.views.engine.defaults import draw_by_defaults as _draw_by_defaults
from parlab.views.engine.explore import explore
from parlab.views.engine.in_browser import let_sliders_run_ranks as _let_sliders_run_ranks
from parlab.views.engine.predict import predict
from parlab.views.experts.balanced_rows import balanced_rows, explore_balance
from parlab.views.experts.copies import copies, explore_copies
from parlab.views.experts.load_of_seeds import load_of_seeds
from parlab.views.experts.rows_way import rows_way
from parlab.views.experts.token_way import token_way
from parlab.views.experts.work_and_messages import work_and_messages
from parlab.views.film import film
from parlab.views.pipeline.bubble_prices import bubble_prices, explore_bubble_prices
from parlab.views.pipeline.frontier import frontier
from parlab.views.pipeline.reorder import reorder
from parlab.views.pipeline.schedule import schedule
from parlab.views.pipeline.step_by_costs import explore_step_costs, step_by_costs
from parlab.views.pipeline.step_frontier import explore_steps, step_frontier
from parlab.views.pipeline.won_back import won_back
from parlab.views.plan.dial import dial, explore_dial
from parlab.views.plan.forgotten import forgotten
from parlab.views.plan.layout import layout
from parlab.views.plan.predicted_and_measured import predicted_and_measured
from parlab.views.plan.refuted import refuted
from parlab.views.plan.two_runs import two_runs
from parlab.views.sequence.attention_film import attention_film
from parlab.views.sequence.compare_rings import compare_rings
from parlab.views.sequence.double_ring_film import double_ring_film
from parlab.views.sequence.group_times import PUBLISHED_RATES, explore_group_times, group_times, published_groups
from parlab.views.sequence.ring_bill import best_repair, explore_ring_bill, ring_bill
from parlab.views.sequence.ring_film import ring_film
from parlab.views.sequence.ring_masks import packed_ring, ring_masks
from parlab.views.tensor.film_of_block import film_of_block
from parlab.views.tensor.kept_arrays import kept_arrays
from parlab.views.tensor.mlp_film import mlp_film
from parlab.views.tensor.tensor import explore_tensor, tensor
from parlab.views.tensor.whole_or_partial import whole_or_partial
from parlab.views.train.film_of_sums import film_of_sums
from parlab.views.train.groups_on_mesh import groups_on_mesh
from parlab.views.train.line_up import line_up
from parlab.views.train.loss_curves import loss_curves
from parlab.views.train.who_sees import explore_who_sees, who_sees
from parlab.views.train.wrong_gradients import wrong_gradients
from parlab.views.world.all_reduce_seconds import all_reduce_seconds, explore_all_reduce_seconds
from parlab.views.world.compare_timelines import compare_timelines
from parlab.views.world.deadlock import deadlock
from parlab.views.world.lanes_of import lanes_of
from parlab.views.world.pieces_film import pieces_film
from parlab.views.world.pieces_sent import pieces_sent
from parlab.views.world.rounds import rounds
from parlab.views.world.stall_waits import explore_stall, stall_waits
from parlab.views.world.timeline import timeline
from parlab.views.world.trace_back import trace_back
from parlab.views.zero.film_of_copies import film_of_copies
from parlab.views.zero.price_tag import explore_price_tag, price_tag
from parlab.views.zero.zero_film import zero_film
from parlab.world.engines.strands import IN_BROWSER as _IN_BROWSER

_draw_by_defaults(globals())
display.register()
if _IN_BROWSER:
    _let_sliders_run_ranks()
