"""The figures' tables of rules: each argument is refused by its own name, before any work."""

from __future__ import annotations

import re

import numpy as np
import pytest

from parlab import run, views
from parlab.pipeline import gpipe
from parlab.plan import LLAMA_8B

TIMELINE = run(lambda comm: None, 2).timeline

ROWS = [
    (lambda: views.tensor(S=0), "S=0: must be a whole number, at least 1"),
    (lambda: views.tensor(S="no"), "S='no': must be a whole number, at least 1"),
    (lambda: views.tensor(S=10**19), "S=10000000000000000000: must be at most 2147483648"),
    (lambda: views.tensor(model=[]), "model=[]: use one of Llama 3 8B"),
    (lambda: views.tensor(ranks_per_node=3), "ranks_per_node=3: groups of 1, 2, 4, 8, 16, 32, 64 ranks must fill"),
    (lambda: views.tensor(ranks_per_node=0), "ranks_per_node=0: must be a whole number, at least 1"),
    (lambda: views.ring_masks(causal="no"), "causal='no': must be True or False"),
    (lambda: views.ring_masks(causal=[]), "causal=[]: must be True or False"),
    (lambda: views.packed_ring(8), "documents=8: a list of whole numbers is needed"),
    (lambda: views.packed_ring({"a": 1}), "documents={'a': 1}: a list of whole numbers is needed"),
    (lambda: views.packed_ring([0, 2.5]), "documents[1]=2.5: must be a whole number"),
    (
        lambda: views.sharded_block(LLAMA_8B, 4, sequence_parallel="yes"),
        "sequence_parallel='yes': must be True or False",
    ),
    (lambda: views.wrong_gradients(3, {"a": np.ones(2)}), "found=3: must have one value or more, by name"),
    (lambda: views.wrong_gradients({"a": np.ones(2)}, 3), "expected=3: must have one value or more, by name"),
    (lambda: views.schedule(gpipe(2, 2), memory="no"), "memory='no': must be True or False"),
    (lambda: views.schedule(gpipe(2, 2), critical_path="no"), "critical_path='no': must be True or False"),
    (lambda: views.timeline(TIMELINE, end=True), "end=True: the time axis must end after 0"),
]


@pytest.mark.parametrize(("call", "said"), ROWS, ids=[said for _, said in ROWS])
def test_bad_input_is_refused_by_name_and_value(call, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        call()
