"""A block that keeps its input alone: the same numbers, and its forward's messages once more."""

import numpy as np
import pytest

from parlab import run
from parlab.tensor import ParallelLlama, Recompute
from tests.nn.kept import itemize
from tests.tensor.models import B, S, model


def program(comm, again, sequence_parallel, backward=True):
    """What a block of 2 ranks keeps and gives, of two microbatches that are under way together."""
    block = ParallelLlama.from_full(comm, model(), sequence_parallel=sequence_parallel).blocks[0]
    block = Recompute(block) if again else block
    draw = np.random.default_rng(comm.rank if sequence_parallel else 0)
    xs, dys = draw.normal(size=(2, 2, B, S // comm.size if sequence_parallel else S, 16))
    ys, caches = zip(*[block.forward(x.copy()) for x in xs], strict=True)
    if not backward:
        return itemize(caches[0])
    found = [block.backward(dy, cache) for dy, cache in zip(dys, caches, strict=True)]
    later, pending = block.backward_input(dys[0], caches[0])
    gradients = block.backward_weight(pending)
    return [*ys, later, *gradients.values(), *(x for dx, of_block in found for x in (dx, *of_block.values()))]


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["whole", "sequence"])
def test_it_keeps_x_alone_and_gives_the_same_to_the_bit_for_one_forward_more_a_backward(sequence_parallel):
    kept, again = (run(program, 2, again, sequence_parallel) for again in (False, True))
    for plain, recomputed in zip(kept.results, again.results, strict=True):
        assert all((one == other).all() for one, other in zip(plain, recomputed, strict=True))
    forward = run(program, 2, True, sequence_parallel, False)
    assert forward.results == [{"x": B * S * 16 * 8 // (2 if sequence_parallel else 1)}] * 2
    more = again.timeline.messages(0) - kept.timeline.messages(0)
    assert more == 3 * forward.timeline.messages(0) // 2  # 3 backwards; that run made 2 forwards
