"""The rules of this room's arguments, by name; those of a layout's fields, in columns, are in `parlab.plan.layout`."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from typing import Any

from parlab.arguments import Rule, amount, flag, instance, optional, positive, text, whole
from parlab.nn.config import Config
from parlab.world import Cluster
from parlab.zero import StateBytes

MOST_RANKS = 2**20  # a search tries every way to multiply to this
MOST_TOKENS = 10**12  # of a sequence, and sequences of a step: beyond, products of whole numbers overflow
HIDDEN = ("tp", "cp", "pp", "dp")  # the traffic that software may send while it computes


def config(name: str, value: Any) -> None:
    """Refuse a model that is neither a Llama nor a GPT."""
    if not isinstance(value, Config):
        raise ValueError(f"{name}={value!r:.60}: a LlamaConfig or a GPTConfig is needed")


def count(name: str, value: Any, most: int) -> None:
    """Refuse a number that is not whole, or not from 1 to `most`."""
    if whole(name, value, 1) > most:
        raise ValueError(f"{name}={value!r:.60}: must be at most {most}")


def float_itemsize(name: str, value: Any) -> None:
    """Refuse a size that no floating dtype has."""
    if whole(name, value) not in (1, 2, 4, 8):
        raise ValueError(f"{name}={value!r}: an element of a floating dtype has 1, 2, 4 or 8 bytes")


def fraction(name: str, value: Any) -> None:
    """Refuse a pace beyond the data sheet's."""
    positive(name, value)
    if value > 1:
        raise ValueError(f"{name}={value!r}: a fraction of the data sheet, greater than 0 and at most 1, is needed")


def fraction_or_free(name: str, value: Any) -> None:
    """A fraction of the data sheet, or inf for what takes no time."""
    if value != math.inf:
        fraction(name, value)


def hidden(name: str, value: Any) -> None:
    """Refuse a collection that names another kind of traffic; a string is no collection of names."""
    if isinstance(value, str) or not isinstance(value, Collection) or not all(kind in HIDDEN for kind in value):
        raise ValueError(f"{name}={value!r:.60}: a set of some of {', '.join(HIDDEN)} is needed")


def band(name: str, value: Any) -> None:
    """Refuse what is not two amounts of memory, the smaller one first."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValueError(f"{name}={value!r:.60}: must be two numbers of GiB, the least and the most")
    for one in value:
        positive(name, one)
    if value[0] > value[1]:
        raise ValueError(f"{name}={value!r}: the least comes first")


def ordered(name: str, value: Any) -> None:
    """Refuse what is no order of the four axes."""
    if not isinstance(value, tuple) or len(value) != len(HIDDEN) or set(value) != set(HIDDEN):
        raise ValueError(f"{name}={value!r:.60}: a tuple of {', '.join(HIDDEN)}, the innermost first, is needed")


RULES: dict[str, Rule] = {  # of `estimate` and `search`
    "config": config,
    "cluster": partial(instance, kind=Cluster),
    "ranks": partial(count, most=MOST_RANKS),
    "batch": partial(count, most=MOST_TOKENS),
    "sequence": partial(count, most=MOST_TOKENS),
    "state": partial(instance, kind=StateBytes),
    "itemsize": float_itemsize,
    "memory": optional(positive),
    "offload": flag,
}
HARDWARE: dict[str, Rule] = {  # of the fields of a `Hardware`
    "products": fraction,
    "attention": optional(fraction),
    "memory": fraction_or_free,
    "intra": fraction_or_free,
    "inter": fraction_or_free,
    "processors": optional(partial(whole, least=1)),
    "usable": optional(band),
    "exponentials": positive,
    "host_link": positive,
    "host_memory": positive,
    "rails": flag,
    "collective": amount,
    "source": text,
}
SOFTWARE: dict[str, Rule] = {  # of the fields of a `Software`
    "hides": hidden,
    "order": ordered,
    "gradient": optional(float_itemsize),
    "joins_products": flag,
    "gathers_again": flag,
    "gathers_once": flag,
    "cuts_logits": flag,
    "scatters_gradients": flag,
    "scatters": flag,
    "one_stream": flag,
    "logit": partial(whole, least=0),
    "source": text,
}
