"""The planner: the time and memory of each layout of a model on a cluster, the best layout, and why it is the best.

To read one estimate: `layout` (its fields), `case` (the records that all formulas read, from `sizes`, `stages` and
`sharding`), then one bill each: `seconds` (begin at `step_seconds`) with `layer_seconds` and `machine`, `memory`,
`traffic`. `search` asks for all possible layouts at once; `rules` says which are possible.
"""

from parlab.nn import GPTConfig
from parlab.nn.published import GPT_22B, GPT_175B, LLAMA_7B, LLAMA_8B, LLAMA_70B, LLAMA_405B, MODELS
from parlab.plan.estimate import Estimate, estimate
from parlab.plan.hardware import A100, CLOCK, H100, Hardware, hardware_of
from parlab.plan.layout import Layout
from parlab.plan.paper import memory_on_paper, seconds_on_paper
from parlab.plan.plans import Plans, worth_having
from parlab.plan.search import search
from parlab.plan.software import LLAMA_3, MEGATRON, OURS, PLAIN, TORCHTITAN, Software, software_of
from parlab.plan.validation import Row, Validation, validation
from parlab.plan.walk import Walk
from parlab.plan.why import Neighbour, Why, binding, why
