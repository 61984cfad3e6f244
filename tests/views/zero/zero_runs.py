"""Steps of ZeRO for the views' tests: a small decoder, real messages, a clock without latency."""

from functools import cache

import numpy as np

from parlab import Cluster, run
from parlab.nn.llama import Llama, LlamaConfig
from parlab.nn.optimizer import AdamW
from parlab.zero import DataParallel, LossScale, Zero, forward_backward, shard_range

CONFIG = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=4, num_attention_heads=2,
)  # fmt: skip
WEIGHTS = Llama.random(CONFIG, seed=1, dtype="float32", xp=np).weights
PSI = sum(weight.size for weight in WEIGHTS.values())  # 9872: a multiple of 4, and not of 3
S = 8  # tokens of a row
CLUSTER = Cluster.uniform(0, 1e9, flops=1e11)


def program(comm, weights, text, stage, **options):
    model = Llama(CONFIG, dict(weights))
    made = DataParallel if stage == 0 else Zero
    scale = (
        LossScale(1.0) if options["dtype"] == "float16" else None
    )  # at the default, 65536, the step would be skipped
    options |= {"optimizer": AdamW(lr=1e-2), "blocks": model.weight_blocks, "loss_scale": scale}
    replica = made(comm, model.weights, **({"stage": stage} if stage else {}), **options)
    rows = shard_range(len(text), comm.rank, comm.size)
    own = text[rows.start : rows.stop]
    for number in range(options.get("microbatches", 1)):
        part = shard_range(len(own), number, options.get("microbatches", 1))
        tokens = own[part.start : part.stop]
        forward_backward(replica, model, tokens[:, :-1], tokens[:, 1:])
    replica.step()


@cache
def step(stage, size=4, rows=2, **options):
    """One step in mixed precision, `rows` rows a rank."""
    text = np.random.default_rng(0).integers(32, size=(rows * size, S + 1))
    return run(program, size, WEIGHTS, text, stage, **{"cluster": CLUSTER, "dtype": "float16", **options})
