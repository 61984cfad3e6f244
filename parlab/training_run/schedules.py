"""The pipeline schedules that the command names."""

from __future__ import annotations

from collections.abc import Callable

from parlab import pipeline
from parlab.arguments import one_of, whole
from parlab.pipeline import Schedule

CHUNKED = ("looped_bfs", "interleaved_one_f_one_b")  # schedules of several chunks a rank
SCHEDULES = (
    "gpipe", "one_f_one_b", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min", "one_f_one_b_v", "dualpipe", "dualpipe_v",
    *CHUNKED,
)  # fmt: skip


def schedule_of(name: str, ranks: int, microbatches: int | None = None, chunks: int = 2) -> Schedule:
    """The pipeline's schedule by its name; one rank has no pipeline, and runs one microbatch after the other.

    Args:
        name: one of SCHEDULES.
        ranks: of the pipeline.
        microbatches: None: two for each rank of a pipeline, or one.
        chunks: pipeline stages of a rank, for the schedules that have several.
    """
    one_of("schedule", name, SCHEDULES)
    whole("chunks", chunks, 1)
    if microbatches is not None:
        whole("microbatches", microbatches, 1)
    microbatches = microbatches or default_microbatches(ranks)
    if ranks == 1:
        return pipeline.one_f_one_b(1, microbatches)
    make: Callable[..., Schedule] = getattr(pipeline, name)
    if name in CHUNKED:
        return make(ranks, microbatches, chunks)
    return make(ranks, microbatches)


def default_microbatches(ranks: int) -> int:
    """Two for each rank of a pipeline; one where there is no pipeline."""
    return 2 * ranks if ranks > 1 else 1
