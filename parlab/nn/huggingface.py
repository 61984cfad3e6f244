"""A model's folder as Hugging Face's transformers writes it: `config.json`, and the weights in safetensors files.

    config.json                          sizes, and the names in them
    model.safetensors                    all weights, or, for large models:
    model-00001-of-00003.safetensors     a part of them, ...
    model.safetensors.index.json         ... and the part in which each weight lies

Nothing is ever unpickled. No file is left half written: all files are completed under temporary names before the first
of them is renamed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, deserialize, safe_open
from safetensors.numpy import save

from parlab.arrays import Array, from_bfloat16

CONFIG = "config.json"
WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of `config.json`.

    Raises:
        FileNotFoundError: the folder or the file is not there.
        ValueError: it is no JSON object.
    """
    return read_json(Path(folder) / CONFIG)


def read_weights(folder: str | os.PathLike[str]) -> dict[str, Array]:
    """Every tensor in the folder's safetensors files by name, as NumPy arrays. bfloat16 becomes float32.

    Raises:
        FileNotFoundError: there is neither `model.safetensors` nor an index, or a part is missing.
        ValueError: a file is damaged, or the index and a part contradict each other.
    """
    folder = Path(folder)
    if (folder / WHOLE).exists():
        return _read_tensors(folder / WHOLE)
    if not (folder / INDEX).exists():
        pickled = " (pytorch_model.bin is a pickle, which is never opened: convert it)"
        raise FileNotFoundError(
            f"{folder} has neither {WHOLE} nor {INDEX}{pickled if (folder / 'pytorch_model.bin').exists() else ''}"
        )
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(place, str) for place in places.values()):
        raise ValueError(f"{folder / INDEX} has no weight_map from names to files")
    weights: dict[str, Array] = {}
    for part in sorted(set(places.values())):
        if Path(part).name != part:
            raise ValueError(f"{folder / INDEX} names the file {part!r}: it must lie in the folder itself")
        tensors = _read_tensors(folder / part)
        for name in (name for name, place in places.items() if place == part):
            if name not in tensors:
                raise ValueError(f"{folder / part} lacks {name}, which {INDEX} places there")
            weights[name] = tensors[name]
    return weights


def write_folder(folder: str | os.PathLike[str], config: Mapping[str, Any], weights: Mapping[str, Array]) -> None:
    """Write `config.json` and the weights (NumPy arrays). An earlier model in the folder is replaced, its parts too."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        WHOLE: save(dict(weights), metadata={"format": "pt"}),  # transformers asks for the format
        CONFIG: (json.dumps(config, indent=2, sort_keys=True) + "\n").encode(),
    }
    stale = {path for path in folder.glob("model*.safetensors*") if path.name != WHOLE}
    temporary = {name: folder / f".{name}.partial" for name in contents}
    try:
        for name, content in contents.items():
            temporary[name].write_bytes(content)
        for name, path in temporary.items():
            path.replace(folder / name)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)
    for path in stale:
        path.unlink()


def read_json(path: Path) -> dict[str, Any]:
    """The content of a file that is a JSON object.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is damaged, or something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}: a JSON object is needed")
    return content


def open_tensors(path: Path) -> Any:
    """A safetensors file, opened for `with`, whose arrays are NumPy's.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is damaged.
    """
    try:
        return safe_open(path, framework="np")
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or truncated: {error}") from error


def _read_tensors(path: Path) -> dict[str, Array]:
    with open_tensors(path) as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (it is no dict)
        tensors = {name: file.get_tensor(name) for name, kind in kinds.items() if kind != "BF16"}
    if len(tensors) < len(kinds):  # NumPy has no bfloat16
        raw = dict(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
        missing = kinds.keys() - tensors.keys()
        tensors |= {name: from_bfloat16(raw[name]["data"], raw[name]["shape"]) for name in missing}
    return tensors
