"""ZeRO in the mesh: over dp × cp, and for experts over edp, inside a replica that pp, tp and ep cut.

Invariant: the squares of a weight count once in the norm, however many ranks have a copy; and every sum of gradients is
divided by dp · cp, over however many ranks it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.nn.optimizer import AdamW
from parlab.train.job import TrainJob
from parlab.train.mixture import is_expert
from parlab.train.rank_model import RankModel
from parlab.zero import Zero, replica_of
from parlab.zero.arguments import ModelParallel


def zero_replica(
    job: TrainJob, model: RankModel, expected: Mapping[str, int], optimizer: AdamW, precision: Mapping[str, Any]
) -> Zero:
    """ZeRO's replica, which takes over the weights of this rank's model.

    Args:
        expected: how often gradients of each block come in a step.
        precision: dtype, loss_scale and max_norm.
    """
    mesh, settings = job.mesh, job.settings
    return replica_of(
        mesh.data,
        model.llama,
        settings.zero,
        optimizer,
        blocks=model.blocks,
        bucket_bytes=1,  # stage 0, a bucket a block: every copy of a weight is summed in the same order
        accumulate=settings.reduce == "accumulate",
        model_parallel=model_parallel(job, model, expected),
        **precision,
    )


def model_parallel(job: TrainJob, model: RankModel, expected: Mapping[str, int]) -> ModelParallel:
    """The cut of the replica, as ZeRO has to know it.

    The gradient of an expert already holds the tokens of all ranks of ep. Its sum over edp is the sum over dp × cp.
    ZeRO divides the sums of all blocks by the size of its own group, `mesh.data`, dp · cp, and not by that of the
    block's group (`StepGuard`): divided by edp an expert's gradient would be ep times too large.
    """
    mesh = job.mesh
    copies = {name: model.llama.slices[name].shared_by * len(model.pp_ranks[name]) for name in model.llama.weights}
    holders = mesh.comm  # of all shards
    if job.settings.zero == 0:  # nothing is sharded: the ranks of one copy of the model hold all gradients
        holders = mesh.model
        for name in copies:
            if not is_expert(name):  # each rank of its ep holds these
                copies[name] *= mesh.ep.size
    of_experts = [block for block, names in model.blocks.items() if is_expert(names[0])]
    return ModelParallel(
        holders=holders,
        in_norm={name: 1 / of_weight for name, of_weight in copies.items()},
        expected=expected,
        groups=dict.fromkeys(of_experts, mesh.edp),
    )
