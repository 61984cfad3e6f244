"""Figures and widgets: what a run, a schedule or an error looks like."""

from parlab.views import display
from parlab.views.all_reduce.seconds import all_reduce_seconds, explore_all_reduce_seconds
from parlab.views.all_reduce.sends import pieces_sent
from parlab.views.attention.links import PUBLISHED_RATES, explore_links, link_bill, published_groups
from parlab.views.attention.masks import packed_ring, ring_masks
from parlab.views.attention.ring_bill import explore_ring_bill, ring_bill
from parlab.views.attention.ring_lanes import compare_rings
from parlab.views.bugs.checks import explore_who_sees, who_sees
from parlab.views.bugs.gradients import wrong_gradients
from parlab.views.bugs.line_up import line_up
from parlab.views.bugs.losses import loss_curves
from parlab.views.drawing.rules import draw_by_own_rules as _draw_by_own_rules
from parlab.views.experts.balance import balanced_rows, explore_balance
from parlab.views.experts.copies import copies, dropped, explore_copies
from parlab.views.experts.layer import work_and_messages
from parlab.views.experts.rows_way import rows_way
from parlab.views.experts.seeds import load_of_seeds
from parlab.views.experts.way import token_way
from parlab.views.films import film
from parlab.views.mesh.place import groups_on_mesh
from parlab.views.mesh.sums import film_of_sums
from parlab.views.planning.forgotten import forgotten
from parlab.views.planning.layout import explore_layout, layout
from parlab.views.planning.measured import predicted_and_measured
from parlab.views.planning.refuted import refuted
from parlab.views.planning.two_runs import dial, explore_dial, two_runs
from parlab.views.schedules.bubbles import won_back
from parlab.views.schedules.by_costs import explore_step_costs, step_by_costs
from parlab.views.schedules.frontier import frontier
from parlab.views.schedules.price import bubble_prices, explore_bubble_prices
from parlab.views.schedules.reorder import reorder
from parlab.views.schedules.schedule import compare_schedules, schedule
from parlab.views.schedules.steps import explore_steps, step_frontier
from parlab.views.sharding.block import film_of_block
from parlab.views.sharding.kept import kept_arrays
from parlab.views.sharding.numbers import whole_or_partial
from parlab.views.sharding.price import explore_tensor, tensor
from parlab.views.timelines.panels import compare_timelines, lanes_of
from parlab.views.timelines.rounds import rounds
from parlab.views.timelines.stall import explore_stall, stall_waits
from parlab.views.timelines.timeline import timeline
from parlab.views.timelines.trace_back import trace_back
from parlab.views.timelines.waits_for import deadlock
from parlab.views.widgets.guess import predict
from parlab.views.widgets.in_browser import let_sliders_run_ranks as _let_sliders_run_ranks
from parlab.views.zero_redundancy.copies_film import film_of_copies
from parlab.views.zero_redundancy.price_tag import explore_price_tag, price_tag
from parlab.world.engines.strands import IN_BROWSER as _IN_BROWSER

_draw_by_own_rules(globals())
display.register()
if _IN_BROWSER:
    _let_sliders_run_ranks()
