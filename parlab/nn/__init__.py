"""The serial reference: each piece of a transformer, forward and backward, and the optimizer.

To read it, begin with `linear`, a piece whose backward has two parts. `norm`, `activation`, `rotary`, `embedding` and
`cross_entropy` are pieces like it. `attention` is FlashAttention's algorithm, and `tiles` the strips that it walks;
`dense_attention` is the plain one. `stage` is the protocol by which pieces with weights are put together: `layers`
has a Llama's, `llama` the model. `moe` and `mixtral` are the same for a mixture of experts; its parts are `routing`,
`router` and `permute`. `optimizer`, `training` and `corpus` train them; `formulas`, `counting` and `parameters` count;
`config`, `huggingface` and `published` know sizes and files.
"""

from parlab.nn.config import GPTConfig, LlamaConfig
from parlab.nn.corpus import MarkovSource
from parlab.nn.cross_entropy import IGNORED
from parlab.nn.llama import Llama
from parlab.nn.mixtral import Mixtral, MixtralConfig
from parlab.nn.moe import Experts, MixtureOfExperts
from parlab.nn.optimizer import AdamW, clip_gradients, warmup_cosine
from parlab.nn.parameters import parameters
from parlab.nn.router import Router
from parlab.nn.routing import Routing, route, route_backward
from parlab.nn.training import train
