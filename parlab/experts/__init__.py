"""Strategies that deal out the experts of a mixture: each rank has some of them, and tokens travel to their experts.

Begin with `all_to_all`: dispatch and combine. Then:

`hierarchical`, `all_gather`    the two other ways to the experts: once to each node; all tokens to all ranks
`rank_experts`                  which experts a rank has, and their work
`layer`                         the mixture on the ranks of a group
`costs`                         rows and bytes on paper
"""

from parlab.experts.all_to_all import (
    Plan,
    combine,
    combine_backward,
    combine_forward,
    dispatch,
    dispatch_backward,
    exchange_rows,
    mixed_rows,
)
from parlab.experts.costs import (
    ExpertCost,
    copies_to_experts,
    copies_to_limited_nodes,
    copies_to_ranks,
    expert_cost,
    units_of_layer,
)
from parlab.experts.layer import ExpertParallel
from parlab.experts.rank_experts import experts_of
