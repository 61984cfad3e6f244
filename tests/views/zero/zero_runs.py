"""Steps of ZeRO for the views' tests: a small decoder, real messages, a clock without latency."""

from functools import cache

import numpy as np

from parlab import Cluster, run
from parlab.nn.llama import Llama, LlamaConfig
from parlab.nn.optimizer import AdamW
from parlab.zero import LossScale, Zero, forward_backward, shard_range

CONFIG = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=4, num_attention_heads=2,
)  # fmt: skip
WEIGHTS = Llama.random(CONFIG, seed=1, dtype="float32", xp=np).weights
S = 8  # tokens of a row
CLUSTER = Cluster.uniform(0, 1e9, flops=1e11)


def program(comm, weights, text, stage, **options):
    model = Llama(CONFIG, dict(weights))
    options |= {"optimizer": AdamW(lr=1e-2), "blocks": model.weight_blocks, "dtype": "float16"}
    scale = LossScale(1.0)  # at the default, 65536, the step would be skipped
    replica = Zero(comm, model.weights, stage=stage, loss_scale=scale, **options)
    rows = shard_range(len(text), comm.rank, comm.size)
    tokens = text[rows.start : rows.stop]
    forward_backward(replica, model, tokens[:, :-1], tokens[:, 1:])
    replica.step()


@cache
def step(stage, size=4, **options):
    """One step in mixed precision, two rows a rank."""
    text = np.random.default_rng(0).integers(32, size=(2 * size, S + 1))
    return run(program, size, WEIGHTS, text, stage, cluster=CLUSTER, **options)
