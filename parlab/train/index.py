"""The index of a checkpoint, `index.json`:

    format      "parlab checkpoint 2"
    config      of the model, in Hugging Face's names
    optimizer   AdamW's hyperparameters
    precision   dtypes of the masters and of the weights, max_norm, the loss scale's settings
    progress    samples, steps, skipped steps, and the state of the loss scale
    notes       the caller's
    files       the SHA-256 of each file, by its name
    pieces      which elements of which weight lie in which file
    checksum    the SHA-256 of all this

A piece is (weight, slice along the axis that tensor parallelism cuts, first element in that slice, length). That says
which elements of the whole weight it has, on any mesh.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np

from parlab.arguments import Rule, checked, instance, one_of, optional, positive, text, whole
from parlab.files import write_whole
from parlab.nn import AdamW, LlamaConfig
from parlab.nn.huggingface import read_json
from parlab.train.arguments import RULES
from parlab.zero import LossScale

FORMAT = "parlab checkpoint 2"
INDEX = "index.json"
Entry = dict[str, Any]  # of a piece: the fields of PIECE

as_json = partial(json.dumps, default=methodcaller("item"))  # NumPy's numbers too, as a rate may be one


def write_index(folder: Path, content: Mapping[str, Any]) -> None:
    """Put `index.json` in its place, in one move; `content`: its fields from config to pieces."""
    content = json.loads(as_json({"format": FORMAT, **content}))
    write_whole(folder / INDEX, json.dumps({**content, "checksum": _checksum(content)}, indent=1))


@checked(RULES)
def read_index(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of `index.json`: config, optimizer, precision, progress, notes, files, and the table of pieces.

    Raises:
        FileNotFoundError: there is no checkpoint in the folder.
        ValueError: the index is damaged, or of another format.
    """
    path = Path(folder) / INDEX
    if not path.exists():
        raise FileNotFoundError(f"{folder} has no {INDEX}: no save() into it was completed")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: a file is needed")
    index = read_json(path)
    if index.get("format") != FORMAT:
        raise ValueError(
            f"{path}: format={index.get('format')!r:.60}: this version of parlab reads {FORMAT!r} alone; "
            "go on with the version that saved it"
        )
    try:
        _check_fields("the index", index, FIELDS)
        for piece in index["pieces"]:
            one_of("file of a piece", piece["file"], tuple(index["files"]))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    checksum = index.pop("checksum")
    if checksum != _checksum(index):
        raise ValueError(f"{path} is damaged: its content does not fit its checksum")
    return index


def elements(entry: Entry) -> np.ndarray:
    """Which of the whole weight, flattened, the piece has: `[length]`."""
    shape, axis = entry["shape"], entry["axis"]
    cut = () if axis is None else (slice(None),) * axis + (slice(entry["start"], entry["stop"]),)
    flat = np.arange(math.prod(shape)).reshape(shape)[cut].reshape(-1)
    return flat[entry["flat_start"] : entry["flat_start"] + entry["length"]]


def by_weight(pieces: Sequence[Entry], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[Entry]]:
    """The pieces of each weight.

    Raises:
        ValueError: a piece is of another model; an element of a weight is in no piece, or in two.
    """
    found: dict[str, list[Entry]] = {name: [] for name in shapes}
    for entry in pieces:
        name, shape = entry["name"], tuple(entry["shape"])
        if shapes.get(name) != shape:
            raise ValueError(
                f"the checkpoint has {name} of shape {shape}, its model {shapes.get(name, 'no such weight')}: "
                "a file of another model lies among its own"
            )
        found[name].append(entry)
    for name, entries in found.items():
        times = np.zeros(math.prod(shapes[name]), dtype=int)  # how often each element is there
        for entry in entries:
            times[elements(entry)] += 1
        if (times != 1).any():
            first = int((times != 1).argmax())
            stop = first + int(np.append(times[first:] == times[first], False).argmin())
            problem = f"has {first}:{stop} twice" if times[first] else f"lacks {first}:{stop}"
            raise ValueError(f"the checkpoint {problem} of the {len(times)} elements of {name}")
    return found


# What each field may hold: a rule by the field's name


def _check_fields(name: str, record: Any, rules: Mapping[str, Rule], more: Mapping[str, Rule] | None = None) -> None:
    """Refuse what is no record with the fields of `rules`, and perhaps those of `more`, each as its rule says."""
    instance(name, record, dict)
    if missing := [field for field in rules if field not in record]:
        raise ValueError(f"{name} lacks {', '.join(missing)}")
    known = {**rules, **(more or {})}
    for field, value in record.items():
        one_of(f"field of {name}", field, tuple(known))
        known[field](field, value)


def _record(rules: Mapping[str, Rule], more: Mapping[str, Rule] | None = None) -> Rule:
    return lambda name, value: _check_fields(name, value, rules, more)


def settings_names(kind: type[Any]) -> list[str]:
    """The names of the settings that a dataclass takes."""
    return [field.name for field in fields(kind) if field.init]


def _settings(kind: type[Any]) -> Rule:
    def rule(name: str, value: Any) -> None:
        _check_fields(name, value, dict.fromkeys(settings_names(kind), _anything))
        kind(**value)  # which refuses wrong values

    return rule


def _list_of(rule: Rule) -> Rule:
    def list_rule(name: str, value: Any) -> None:
        instance(name, value, list)
        for number, item in enumerate(value):
            rule(f"{name}[{number}]", item)

    return list_rule


def _anything(name: str, value: Any) -> None:
    pass


def _config(name: str, value: Any) -> None:
    instance(name, value, dict)
    LlamaConfig.from_dict(value)  # which refuses wrong values


def _files(name: str, value: Any) -> None:
    instance(name, value, dict)
    for file, checksum in value.items():
        if Path(file).name != file:
            raise ValueError(f"{name} has {file!r}: it must lie in the folder itself")
        text(file, checksum)


COUNT = partial(whole, least=0)
FLOAT = partial(one_of, choices=("float16", "float32", "float64"))
PIECE: dict[str, Rule] = {
    "name": text,
    "shape": _list_of(COUNT),
    "axis": optional(COUNT),
    "start": COUNT,
    "stop": COUNT,
    "flat_start": COUNT,
    "length": COUNT,
    "file": text,
}
FIELDS: dict[str, Rule] = {
    "format": text,
    "config": _config,
    "optimizer": _settings(AdamW),
    "precision": _record(
        {"master": FLOAT, "dtype": FLOAT, "max_norm": optional(positive), "loss_scale": optional(_settings(LossScale))}
    ),
    "progress": _record(
        {"samples": COUNT, "steps": COUNT, "skipped": COUNT},
        {"loss_scale": partial(positive, finite=True), "good_steps": COUNT},
    ),
    "notes": partial(instance, kind=dict),
    "files": _files,
    "pieces": _list_of(_record(PIECE)),
    "checksum": text,
}


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
