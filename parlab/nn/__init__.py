"""The serial reference: each piece of a transformer, forward and backward, and the optimizer.

The pieces are in files of their own (`parlab.nn.norm`, `parlab.nn.attention`, ...), the model in `parlab.nn.llama`.
"""

from parlab.nn.config import GPTConfig, LlamaConfig
from parlab.nn.corpus import MarkovSource
from parlab.nn.embedding import IGNORED
from parlab.nn.llama import Llama
from parlab.nn.mixtral import Mixtral, MixtralConfig
from parlab.nn.moe import MixtureOfExperts
from parlab.nn.optimizer import AdamW, clip_gradients, warmup_cosine
from parlab.nn.parameters import parameters
from parlab.nn.routing import Routing, route, route_backward
from parlab.nn.training import train
