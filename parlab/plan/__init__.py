"""The planner: the time and memory of each layout of a model on a cluster, the best layout, and why it is the best.

Two sums are all there is. A pencil can check them (`paper`, where one begins) for an even model on a pipeline of p
ranks with v chunks each, with every layer cut among t tensor-parallel ranks, and m microbatches for each of d replicas:

    seconds of a step  =  (m + (p − 1)/v) · microbatch
    bytes of a rank    =  (params · state + min(p, m) · kept) / (p · t)

`microbatch` is its work and its traffic on a rank, which has 1/p of the layers; `state` is 16 bytes a parameter, of
which ZeRO divides some by d; `kept` are the activations of a microbatch.

`bills` has the same sums for real models, a kind a line: stages differ, links have a pace, and work hides traffic. The
form of each kind stands in the file of its strategy, its seconds beside its bytes: `tensor`, `attention` (with the ring
of context parallelism), `pipeline`, `zero` and `experts`; and `layer` has the work, `memory` what is kept. They read a
`Case` (`case`: the model's `sizes`, the layout, its `stages`) and a `Machine` (`machine`: seconds of a product, of a
ring, of a message).

`estimate` checks a `layout` and adds its bills up; `search` does so for all that are possible (`rules`) at once, and
returns `plans`, the fastest first; `why` shows the neighbours of one. `software` has the habits of public programs, and
`validation` lays what the bills say beside published numbers.
"""

from parlab.nn import GPTConfig
from parlab.nn.published import GPT_22B, GPT_175B, LLAMA_7B, LLAMA_8B, LLAMA_70B, LLAMA_405B, MODELS
from parlab.plan.estimate import Estimate, estimate
from parlab.plan.layout import Layout
from parlab.plan.machine import A100, CLOCK, H100, Hardware, hardware_of
from parlab.plan.paper import memory_on_paper, seconds_on_paper
from parlab.plan.plans import Plans
from parlab.plan.search import search
from parlab.plan.software import LLAMA_3, MEGATRON, OURS, PLAIN, TORCHTITAN, Software, software_of
from parlab.plan.validation import Row, Validation, validation
from parlab.plan.why import Neighbour, Why, why
