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
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

from parlab.arguments import Rule, finite, instance, one_of, optional, positive, text, whole
from parlab.files import write_whole
from parlab.nn import AdamW, Llama, LlamaConfig, Mixtral, MixtralConfig
from parlab.nn.huggingface import read_json
from parlab.train.arguments import check_folder
from parlab.zero import LossScale

FORMAT = "parlab checkpoint 2"
INDEX = "index.json"

as_json = partial(json.dumps, default=methodcaller("item"))  # with NumPy's numbers, as a learning rate may be one


def write_index(folder: Path, content: Mapping[str, Any]) -> None:
    """Put `index.json` in its place, in one move; `content`: its fields from config to pieces."""
    content = json.loads(as_json({"format": FORMAT, **content}))
    write_whole(folder / INDEX, json.dumps({**content, "checksum": _checksum(content)}, indent=1))


def read_index(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of `index.json`: config, optimizer, precision, progress, notes, files, and the table of pieces.

    Raises:
        FileNotFoundError: there is no checkpoint in the folder.
        ValueError: the index is damaged, or of another format.
    """
    check_folder(folder)
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


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def model_kinds(config: Mapping[str, Any]) -> tuple[type[Llama], type[LlamaConfig]]:
    """The classes of a model and of its configuration, from the fields of `config.json`."""
    return (Mixtral, MixtralConfig) if config.get("model_type") == "mixtral" else (Llama, LlamaConfig)


def settings_names(kind: type[Any]) -> list[str]:
    """The names of the settings that a dataclass takes."""
    return [field.name for field in fields(kind) if field.init]


# The rule of each field


def _check_fields(name: str, record: Any, rules: Mapping[str, Rule], more: Mapping[str, Rule] | None = None) -> None:
    """Refuse a record that lacks a field of `rules`, has one in neither table, or breaks the rule of one."""
    instance(name, record, dict)
    if missing := [field for field in rules if field not in record]:
        raise ValueError(f"{name} lacks {', '.join(missing)}")
    known = {**rules, **(more or {})}
    for field, value in record.items():
        one_of(f"field of {name}", field, tuple(known))
        known[field](field, value)


def _record(rules: Mapping[str, Rule], more: Mapping[str, Rule] | None = None) -> Rule:
    return lambda name, value: _check_fields(name, value, rules, more)


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
    model_kinds(value)[1].from_dict(value)  # which refuses wrong values


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
        {"loss_scale": partial(positive, finite=True), "good_steps": COUNT, "biases": _list_of(_list_of(finite))},
    ),
    "notes": partial(instance, kind=dict),
    "files": _files,
    "pieces": _list_of(_record(PIECE)),
    "checksum": text,
}
