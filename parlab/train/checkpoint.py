"""A training on disk, from which any other mesh goes on.

    index.json                            what was trained, how far, and where each piece lies
    pieces-4f1c09a2-00003.safetensors     what rank 3 wrote of that save: master, mean and square of its pieces

Invariant: `index.json` names complete files only, and is replaced in one move, when all ranks have written theirs. So
whenever a save ends half-way, the training before it is whole; the next one takes away what was left.

A piece is (weight, slice along the axis that tensor parallelism cuts, first element in that slice): see `Piece`. Slices
of a weight tile its axis and pieces tile a slice, which is checked before an array is read; so a rank of another mesh
finds what it keeps by cutting the whole again. No element depends on the mesh, hence neither does the next loss.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from parlab.arrays import asarray, default_namespace, itemsize, to_numpy
from parlab.files import write_whole
from parlab.nn import AdamW, Llama, LlamaConfig
from parlab.train.mesh import Mesh
from parlab.train.trainer import Piece, Trainer
from parlab.zero import LossScale

FORMAT = "parlab checkpoint 1"
INDEX = "index.json"
KINDS = ("master", "mean", "square")
Entry = dict[str, Any]  # of the index: a piece's name, shape, axis, start, stop, flat_start, length, and its file


def save(trainer: Trainer, folder: str | os.PathLike[str], *, notes: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint, each rank its own pieces; all ranks call this, and see the same folder.

    Args:
        trainer: with its mesh, its optimizer, and where it stands.
        folder: made if it is not there. An earlier checkpoint in it is replaced, and whole until then.
        notes: what else a run that goes on wants to know, as JSON has it; the same on every rank.
    """
    comm, folder = trainer.mesh.comm, Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = np.frombuffer(secrets.token_bytes(4), dtype=np.uint8)
    token = to_numpy(comm.broadcast(asarray(drawn, trainer.xp), 0)).tobytes().hex()

    own = [piece for piece in trainer.pieces() if piece.first]
    arrays = {_key(piece, kind): to_numpy(getattr(piece, kind)) for piece in own for kind in KINDS}
    entries = json.dumps([_entry(piece) for piece in own])
    name = f"pieces-{token}-{comm.rank:05d}.safetensors"
    write_whole(folder / name, to_bytes(arrays, metadata={"pieces": entries}))
    comm.barrier()
    if comm.rank == 0:
        files = sorted(folder.glob(f"pieces-{token}-*.safetensors"))
        guard, optimizer = trainer.replica.guard, trainer.replica.optimizer
        index = {
            "format": FORMAT,
            "config": trainer.config.to_dict(),
            "optimizer": _fields(optimizer),
            "precision": {
                "master": _name(trainer.replica.wide),
                "dtype": _name(trainer.replica.dtype),
                "max_norm": guard.max_norm,
                "loss_scale": guard.scale and _fields(guard.scale),
            },
            "progress": trainer.progress,
            "notes": dict(notes or {}),
            "pieces": [{**entry, "file": file.name} for file in files for entry in _entries_of(file)],
        }
        write_whole(folder / INDEX, json.dumps(index, indent=1))
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
    slices = _tiled(index["pieces"], config)
    saved = dict(index["precision"])
    dtype = getattr(xp, saved.pop("master"))
    if saved["loss_scale"] is not None:
        saved["loss_scale"] = LossScale(**saved["loss_scale"])
    zeros = {name: xp.zeros(shape, dtype=dtype) for name, shape in config.weight_shapes.items()}
    optimizer = optimizer or AdamW(**index["optimizer"])
    trainer = Trainer(mesh, Llama(config, zeros), optimizer, **{**saved, **options})
    del zeros
    for name, pieces in groupby(trainer.pieces(), lambda piece: piece.name):
        own = list(pieces)
        for kind in KINDS:
            whole = _whole(folder, slices[name], kind)
            for piece in own:
                cut = np.s_[:] if piece.axis is None else (np.s_[:],) * piece.axis + (np.s_[piece.start : piece.stop],)
                target = getattr(piece, kind)
                flat = whole[cut].reshape(-1)[piece.flat_start : piece.flat_start + target.size]
                target[:] = asarray(flat, xp, target.dtype, target.device)
    trainer.restore(index["progress"])
    return trainer


def export(trainer: Trainer, folder: str | os.PathLike[str]) -> None:
    """Write the weights as a folder that Hugging Face's transformers opens; all ranks call this."""
    weights = trainer.full_weights()
    if trainer.mesh.comm.rank == 0:
        Llama(trainer.config, weights).save(folder)
    trainer.mesh.comm.barrier()


def read_index(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What `index.json` says: config, optimizer, precision, progress, notes, and the table of pieces.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged, or no checkpoint's.
    """
    path = Path(folder) / INDEX
    if not path.exists():
        raise FileNotFoundError(f"{folder} has no {INDEX}: no save() into it was completed")
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise ValueError(f"{path} is no {FORMAT!r}")
    return index


def _entry(piece: Piece) -> Entry:
    said = {name: getattr(piece, name) for name in ("name", "shape", "axis", "start", "stop", "flat_start")}
    return {**said, "length": piece.master.size}


def _key(piece: Piece | Entry, kind: str) -> str:
    at = piece if isinstance(piece, dict) else _entry(piece)
    return f"{at['name']}/{at['start']}/{at['flat_start']}/{kind}"


def _tiled(pieces: list[Entry], config: LlamaConfig) -> dict[str, list[list[Entry]]]:
    """The pieces of each weight, slice by slice, in order; refused where they are not the model, all of it, once."""
    shapes = config.weight_shapes
    found: dict[str, list[Entry]] = {name: [] for name in shapes}
    for entry in pieces:
        name, shape = entry["name"], tuple(entry["shape"])
        if shapes.get(name) != shape:
            raise ValueError(
                f"the checkpoint has {name} of shape {shape}, its model {shapes.get(name, 'no such weight')}: "
                "a file of another model lies among its own"
            )
        found[name].append(entry)
    tiles = {}
    for name, entries in found.items():
        entries.sort(key=lambda entry: (entry["start"], entry["stop"], entry["flat_start"]))
        tiles[name] = [
            list(of_slice) for _, of_slice in groupby(entries, lambda entry: (entry["start"], entry["stop"]))
        ]
        axis, reached = (entries[0]["axis"] if entries else None), 0
        length = 1 if axis is None else shapes[name][axis]
        for of_slice in tiles[name]:
            start, stop = (0, 1) if axis is None else (of_slice[0]["start"], of_slice[0]["stop"])
            _check_next(name, reached, start, f"along axis {axis}")
            reached, flat = stop, 0
            for entry in of_slice:
                _check_next(name, flat, entry["flat_start"], f"of slice {start}:{stop}")
                flat += entry["length"]
            _check_next(name, flat, math.prod(shapes[name]) // length * (stop - start), f"of slice {start}:{stop}")
        _check_next(name, reached, length, f"along axis {axis}")
    return tiles


def _check_next(name: str, reached: int, start: int, where: str) -> None:
    if start != reached:
        problem = f"lacks {reached}:{start}" if start > reached else f"has {start}:{reached} twice"
        raise ValueError(f"the checkpoint {problem} {where} of {name}")


def _whole(folder: Path, slices: list[list[Entry]], kind: str) -> np.ndarray:
    """A weight, or a moment of it, put together."""
    cuts = []
    for of_slice in slices:
        flat = np.concatenate([_array(folder, entry, kind) for entry in of_slice])
        shape, axis = list(of_slice[0]["shape"]), of_slice[0]["axis"]
        if axis is not None:
            shape[axis] = of_slice[0]["stop"] - of_slice[0]["start"]
        cuts.append(flat.reshape(shape))
    return cuts[0] if len(cuts) == 1 else np.concatenate(cuts, axis=slices[0][0]["axis"])


def _array(folder: Path, entry: Entry, kind: str) -> np.ndarray:
    path = folder / Path(entry["file"]).name
    with _opened(path) as file:
        key = _key(entry, kind)
        if key not in file.keys():  # noqa: SIM118 (it is no dict)
            raise ValueError(f"{path} lacks {key}, which {INDEX} places there")
        x: np.ndarray = file.get_tensor(key)
    if x.shape != (entry["length"],):
        raise ValueError(f"{path}: {key} has shape {x.shape}, and {INDEX} says ({entry['length']},)")
    return x


def _entries_of(path: Path) -> list[Entry]:
    with _opened(path) as file:
        return list(json.loads(file.metadata()["pieces"]))


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="np")
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or truncated: {error}") from error
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing: {INDEX} places pieces there") from None


def _fields(settings: Any) -> dict[str, Any]:
    """What the dataclass takes."""
    return {item.name: getattr(settings, item.name) for item in fields(settings) if item.init}


def _name(dtype: Any) -> str:
    return f"float{8 * itemsize(dtype)}"
