"""A training on disk, from which any other mesh goes on.

    index.json                            what was trained, how far, and where each piece lies
    pieces-4f1c09a2-00003.safetensors     what rank 3 wrote of that save: master, mean and square of its pieces

Invariant: `index.json` names complete files only, and is replaced in one move, when all ranks have written theirs. So
whenever a save ends half-way, the training before it is whole; the next one takes away what was left.

A piece is (weight, slice along the axis that tensor parallelism cuts, first element in that slice): see `Piece`. That
says which elements of the whole weight it has, on the mesh that saved and on the one that loads; all pieces together
have each element once, which is checked before an array is read. No element depends on the mesh, hence neither does the
next loss.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from itertools import groupby
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save as to_bytes

from parlab.arrays import asarray, default_namespace, itemsize, to_numpy
from parlab.files import write_whole
from parlab.nn import AdamW, Llama, LlamaConfig
from parlab.nn.huggingface import open_tensors, read_json
from parlab.train.mesh import Mesh
from parlab.train.trainer import Piece, Trainer
from parlab.zero import LossScale

FORMAT = "parlab checkpoint 1"
INDEX = "index.json"
PARTS = ("config", "optimizer", "precision", "progress", "notes", "pieces")  # of the index
KINDS = ("master", "mean", "square")
as_json = partial(json.dumps, default=methodcaller("item"))  # NumPy's numbers too, as a rate may be one
PLACE = ("name", "shape", "axis", "start", "stop", "flat_start")
Entry = dict[str, Any]  # of the index: a piece's PLACE, its length, and its file


def save(trainer: Trainer, folder: str | os.PathLike[str], *, notes: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint, each rank its own pieces; all ranks call this, and see the same folder.

    Args:
        folder: made if it is not there. An earlier checkpoint in it is replaced, and whole until then.
        notes: what else a run that goes on wants to know, as JSON has it, else a ValueError; the same on every rank.
    """
    try:
        as_json(notes)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"notes={notes!r:.60}: {error}") from None
    comm, folder, replica = trainer.mesh.comm, Path(folder), trainer.replica
    folder.mkdir(parents=True, exist_ok=True)
    drawn = np.frombuffer(secrets.token_bytes(4), dtype=np.uint8)
    token = to_numpy(comm.broadcast(asarray(drawn, trainer.xp), 0)).tobytes().hex()

    own = [(_entry(piece), piece) for piece in trainer.pieces() if piece.first]
    arrays = {_key(entry, kind): to_numpy(getattr(piece, kind)) for entry, piece in own for kind in KINDS}
    said = {"pieces": json.dumps([entry for entry, _ in own])}
    write_whole(folder / f"pieces-{token}-{comm.rank:05d}.safetensors", to_bytes(arrays, metadata=said))
    comm.barrier()
    if comm.rank == 0:
        pieces = []
        for path in sorted(folder.glob(f"pieces-{token}-*.safetensors")):
            entries = json.loads(open_tensors(path).metadata()["pieces"])
            pieces += [{**entry, "file": path.name} for entry in entries]
        dtypes, scale = {"master": replica.wide, "dtype": replica.dtype}, replica.guard.scale
        precision = {name: f"float{8 * itemsize(dtype)}" for name, dtype in dtypes.items()}
        index = {
            "format": FORMAT,
            "config": trainer.config.to_dict(),
            "optimizer": _fields(replica.optimizer),
            "precision": {**precision, "max_norm": replica.guard.max_norm, "loss_scale": scale and _fields(scale)},
            "progress": trainer.progress,
            "notes": dict(notes or {}),
            "pieces": pieces,
        }
        write_whole(folder / INDEX, as_json(index, indent=1))
        for path in [*folder.glob("*pieces-*"), *folder.glob(f".{INDEX}.*")]:
            if token not in path.name:
                path.unlink()
    comm.barrier()


def load(
    folder: str | os.PathLike[str], mesh: Mesh, *, optimizer: AdamW | None = None, xp: Any = None, **options: Any
) -> Trainer:
    """A trainer on `mesh` that goes on where `save` was called, whatever the mesh was there; all ranks call this.

    Args:
        folder: with a checkpoint.
        mesh: of any sizes.
        optimizer: the hyperparameters; None: the saved ones.
        xp: the array library, `parlab.arrays.default_namespace()` when None.
        options: of `Trainer`; `dtype`, `max_norm` and `loss_scale` are the saved ones where they are not given.

    Raises:
        FileNotFoundError: there is no checkpoint, or a file of it is missing.
        ValueError: a file is damaged or truncated; pieces leave a hole in a weight, or overlap; a weight is not one of
            the model's; or what `Trainer` refuses.
    """
    folder, index, xp = Path(folder), read_index(folder), xp or default_namespace()
    config = LlamaConfig.from_dict(index["config"])
    saved = _checked(index["pieces"], config.weight_shapes)
    precision = dict(index["precision"])
    wide, scale = precision.pop("master"), precision["loss_scale"]
    precision["loss_scale"] = scale and LossScale(**scale)
    zeros = Llama(config, {name: xp.zeros(x, dtype=getattr(xp, wide)) for name, x in config.weight_shapes.items()})
    trainer = Trainer(mesh, zeros, optimizer or AdamW(**index["optimizer"]), **{**precision, **options})
    del zeros
    names = sorted({entry["file"] for entry in index["pieces"]})
    files = {name: open_tensors(folder / Path(name).name) for name in names}
    for name, of_weight in groupby(trainer.pieces(), lambda piece: piece.name):
        own = [(piece, _elements(_entry(piece))) for piece in of_weight]
        for kind in KINDS:
            whole = _whole(files, saved[name], kind, wide)
            for piece, elements in own:
                target = getattr(piece, kind)
                target[:] = asarray(whole[elements], xp, target.dtype, target.device)
    trainer.restore(index["progress"])
    return trainer


def export(trainer: Trainer, folder: str | os.PathLike[str]) -> None:
    """Write the weights as a folder that Hugging Face's transformers opens; all ranks call this."""
    weights = trainer.full_weights()
    if trainer.mesh.comm.rank == 0:
        Llama(trainer.config, weights).save(folder)
    trainer.mesh.comm.barrier()


def read_index(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What `index.json` says: config, optimizer, precision, progress, notes, and the table of pieces."""
    path = Path(folder) / INDEX
    if not path.exists():
        raise FileNotFoundError(f"{folder} has no {INDEX}: no save() into it was completed")
    index = read_json(path)
    if index.get("format") != FORMAT:
        raise ValueError(f"{path} is no {FORMAT!r}")
    if missing := [part for part in PARTS if part not in index]:
        raise ValueError(f"{path} is damaged: it lacks {', '.join(missing)}")
    return index


def _entry(piece: Piece) -> Entry:
    return {**{name: getattr(piece, name) for name in PLACE}, "length": piece.master.size}


def _key(entry: Entry, kind: str) -> str:
    return f"{entry['name']}/{entry['start']}/{entry['flat_start']}/{kind}"


def _elements(entry: Entry) -> np.ndarray:
    """Which of the whole weight, flattened, the piece has: `[length]`."""
    shape, axis = entry["shape"], entry["axis"]
    cut = () if axis is None else (slice(None),) * axis + (slice(entry["start"], entry["stop"]),)
    flat = np.arange(math.prod(shape)).reshape(shape)[cut].reshape(-1)
    return flat[entry["flat_start"] : entry["flat_start"] + entry["length"]]


def _checked(pieces: list[Entry], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[Entry]]:
    """The pieces of each weight; refused where they are not the model, all of it, once."""
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
            times[_elements(entry)] += 1
        if (times != 1).any():
            first = int((times != 1).argmax())
            stop = first + int(np.append(times[first:] == times[first], False).argmin())
            problem = f"has {first}:{stop} twice" if times[first] else f"lacks {first}:{stop}"
            raise ValueError(f"the checkpoint {problem} of the {len(times)} elements of {name}")
    return found


def _whole(files: Mapping[str, Any], entries: list[Entry], kind: str, dtype: str) -> np.ndarray:
    """A weight, or a moment of it, put together and flattened."""
    whole = np.empty(math.prod(entries[0]["shape"]), dtype)
    for entry in entries:
        file, key, elements = files[entry["file"]], _key(entry, kind), _elements(entry)
        if key not in file.keys():  # noqa: SIM118 (it is no dict)
            raise ValueError(f"{entry['file']} lacks {key}, which {INDEX} places there")
        x = file.get_tensor(key)
        if x.shape != elements.shape:
            raise ValueError(f"{entry['file']}: {key} has shape {x.shape}, and {INDEX} says {elements.shape}")
        whole[elements] = x
    return whole


def _fields(settings: Any) -> dict[str, Any]:
    """What the dataclass takes."""
    return {item.name: getattr(settings, item.name) for item in fields(settings) if item.init}
