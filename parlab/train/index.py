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

The checksum is the only check of the content: an index that fits it is as `write_index` wrote it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

from parlab.files import write_whole
from parlab.nn import Llama, LlamaConfig, Mixtral, MixtralConfig
from parlab.nn.huggingface import read_json
from parlab.train.arguments import check_folder

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
    if index.pop("checksum", None) != _checksum(index):
        raise ValueError(f"{path} is damaged: its content does not fit its checksum")
    return index


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def model_kinds(config: Mapping[str, Any]) -> tuple[type[Llama], type[LlamaConfig]]:
    """The classes of a model and of its configuration, from the fields of `config.json`."""
    return (Mixtral, MixtralConfig) if config.get("model_type") == "mixtral" else (Llama, LlamaConfig)
