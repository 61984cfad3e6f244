"""Checkpoints: a training on disk, from which a run goes on with any mesh.

    index.json                            model, settings, progress, and the place of each piece: see `index.py`
    pieces-4f1c09a2-00003.safetensors     rank 3's file of a save: master, mean and square of its pieces

Invariant: `index.json` names complete files alone, and is replaced in one move, when all ranks have written theirs. So
if a save ends half-way, the checkpoint before it is whole. The next save removes the files that were left.

The elements of a weight do not depend on the mesh that saved them, so the next loss does not either. The index has a
checksum of each file and of itself: a bit that flips on the disk is found before an array is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save as to_bytes

from parlab.arguments import instance
from parlab.arrays import asarray, default_namespace, itemsize, namespace, to_numpy
from parlab.files import write_whole
from parlab.nn import AdamW
from parlab.nn.huggingface import open_tensors
from parlab.train.arguments import check_folder
from parlab.train.index import INDEX, as_json, model_kinds, read_index, write_index
from parlab.train.lock import locked
from parlab.train.mesh import Mesh
from parlab.train.pieces import CheckpointPiece, Entry, by_weight, elements
from parlab.train.trainer import Trainer
from parlab.world import Comm
from parlab.zero import LossScale

KINDS = ("master", "mean", "square")


def save(trainer: Trainer, folder: str | os.PathLike[str], *, notes: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint, each rank its own pieces; all ranks call this, and see the same folder.

    Args:
        folder: made if it is not there. An earlier checkpoint in it is replaced, and whole until then.
        notes: the caller's, in types that JSON has; the same on every rank.

    Raises:
        ValueError: notes that JSON cannot hold; another run saves into the folder at the same time.
    """
    instance("trainer", trainer, Trainer)
    check_folder(folder)
    if notes is not None:
        instance("notes", notes, Mapping)
    try:
        as_json(notes)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"notes={notes!r:.60}: {error}") from None
    job, folder = trainer.parts.job, Path(folder)
    comm = job.mesh.comm
    with locked(folder, "saving") if comm.rank == 0 else nullcontext():
        save_id = _shared_save_id(comm, job.xp)  # rank 0 has the lock before any rank goes on
        own = [piece for piece in trainer.pieces() if piece.first_copy]
        checksum = _write_pieces(folder / _file_name(save_id, comm.rank), own)
        files = _gathered_checksums(comm, checksum, save_id, job.xp)
        if files is not None:
            write_index(folder, {**_described(trainer, notes), "files": files, "pieces": _entries(folder, files)})
            _remove_all_but(save_id, folder)
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
    check_folder(folder)
    instance("mesh", mesh, Mesh)
    folder, index = Path(folder), read_index(folder)
    _, config_kind = model_kinds(index["config"])
    saved = by_weight(index["pieces"], config_kind.from_dict(index["config"]).weight_shapes)
    trainer = _untrained(index, mesh, optimizer, xp or default_namespace(), options)
    own = trainer.pieces()
    needed = dict.fromkeys(entry["file"] for piece in own for entry in saved[piece.name])
    files = {name: _opened(folder / name, index["files"][name]) for name in needed}
    for name, pieces in groupby(own, lambda piece: piece.name):
        _fill(list(pieces), files, saved[name])
    trainer.restore(index["progress"])
    return trainer


def export(trainer: Trainer, folder: str | os.PathLike[str]) -> None:
    """Write the weights as a folder that Hugging Face's transformers opens; all ranks call this."""
    instance("trainer", trainer, Trainer)
    check_folder(folder)
    job, weights = trainer.parts.job, trainer.full_weights()
    if job.mesh.comm.rank == 0:
        model_kind, _ = model_kinds(job.config.to_dict())
        model_kind(job.config, weights).save(folder)
    job.mesh.comm.barrier()


# Saving


def _shared_save_id(comm: Comm, xp: Any) -> str:
    """A random number of this save, drawn by rank 0, for the names of its files; another save has another one."""
    drawn = np.frombuffer(secrets.token_bytes(4), dtype=np.uint8)
    return to_numpy(comm.broadcast(asarray(drawn, xp), 0)).tobytes().hex()


def _gathered_checksums(comm: Comm, checksum: bytes, save_id: str, xp: Any) -> dict[str, str] | None:
    """On rank 0 the checksum of each rank's file, by its name; None on the others."""
    own = asarray(np.frombuffer(checksum, dtype=np.uint8), xp)  # [32]
    gathered = comm.gather(own)  # [32 P] on rank 0
    if gathered is None:
        return None
    of_ranks = to_numpy(gathered).reshape(comm.size, -1)  # [P, 32]
    return {_file_name(save_id, rank): of_ranks[rank].tobytes().hex() for rank in range(comm.size)}


def _remove_all_but(save_id: str, folder: Path) -> None:
    """Remove the files of other saves, and those that a save which was killed left."""
    for path in [*folder.glob("*pieces-*"), *folder.glob(f".{INDEX}.*")]:
        if save_id not in path.name:
            path.unlink()


def _file_name(save_id: str, rank: int) -> str:
    return f"pieces-{save_id}-{rank:05d}.safetensors"


def _write_pieces(path: Path, pieces: Sequence[CheckpointPiece]) -> bytes:
    """Write a rank's file; returns its SHA-256, taken before a byte is on the disk."""
    entries = [piece.entry for piece in pieces]
    arrays = {
        _key(entry, kind): to_numpy(getattr(piece, kind))
        for entry, piece in zip(entries, pieces, strict=True)
        for kind in KINDS
    }
    content = to_bytes(arrays, metadata={"pieces": json.dumps(entries)})
    write_whole(path, content)
    return hashlib.sha256(content).digest()


def _entries(folder: Path, files: Mapping[str, str]) -> list[Entry]:
    """The entries of all pieces, from the files' headers."""
    entries = []
    for name in files:
        of_file = json.loads(open_tensors(folder / name).metadata()["pieces"])
        entries += [{**entry, "file": name} for entry in of_file]
    return entries


def _described(trainer: Trainer, notes: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of the index that are the same on every rank."""
    job, replica = trainer.parts.job, trainer.parts.replica
    scale = replica.guard.scale
    return {
        "config": job.config.to_dict(),
        "optimizer": _arguments(replica.optimizer),
        "precision": {
            "master": f"float{8 * itemsize(replica.master_dtype)}",
            "dtype": f"float{8 * itemsize(replica.dtype)}",
            "max_norm": replica.guard.max_norm,
            "loss_scale": scale and _arguments(scale),
        },
        "progress": trainer.progress,
        "notes": dict(notes or {}),
    }


def _arguments(of: Any) -> dict[str, Any]:
    """The arguments of a dataclass, by name."""
    return {field.name: getattr(of, field.name) for field in fields(of) if field.init}


def _key(entry: Entry, kind: str) -> str:
    return f"{entry['name']}/{entry['start']}/{entry['flat_start']}/{kind}"


# Loading


def _untrained(
    index: Mapping[str, Any], mesh: Mesh, optimizer: AdamW | None, xp: Any, options: Mapping[str, Any]
) -> Trainer:
    """A trainer of the saved model and precision, whose weights are all 0 yet."""
    model_kind, config_kind = model_kinds(index["config"])
    config = config_kind.from_dict(index["config"])
    precision = dict(index["precision"])
    dtype = getattr(xp, precision.pop("master"))
    if precision["loss_scale"] is not None:
        precision["loss_scale"] = LossScale(**precision["loss_scale"])
    zeros = {name: xp.zeros(shape, dtype=dtype) for name, shape in config.weight_shapes.items()}
    model, optimizer = model_kind(config, zeros), optimizer or AdamW(**index["optimizer"])
    return Trainer(mesh, model, optimizer, **{**precision, **options})


def _opened(path: Path, checksum: str) -> Any:
    """A safetensors file whose bytes are those that were saved."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: a file is needed")
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != checksum:
        raise ValueError(f"{path} is damaged or truncated: its SHA-256 is not the one in {INDEX}")
    return open_tensors(path)


def _fill(pieces: Sequence[CheckpointPiece], files: Mapping[str, Any], saved: Sequence[Entry]) -> None:
    """Write the saved elements of one weight into this rank's pieces of it."""
    places = [elements(piece.entry) for piece in pieces]
    for kind in KINDS:
        whole = _joined(files, saved, kind)
        for piece, place in zip(pieces, places, strict=True):
            target = getattr(piece, kind)
            target[:] = asarray(whole[place], namespace(target), target.dtype, target.device)


def _joined(files: Mapping[str, Any], entries: Sequence[Entry], kind: str) -> np.ndarray:
    """A weight, or a moment of it, put together and flattened."""
    parts = [_read(files[entry["file"]], entry, kind) for entry in entries]
    whole = np.empty(math.prod(entries[0]["shape"]), parts[0].dtype)
    for entry, part in zip(entries, parts, strict=True):
        whole[elements(entry)] = part
    return whole


def _read(file: Any, entry: Entry, kind: str) -> np.ndarray:
    """The array of a piece: `[length]`."""
    key = _key(entry, kind)
    if key not in file.keys():  # noqa: SIM118 (it is no dict)
        raise ValueError(f"{entry['file']} lacks {key}, which {INDEX} places there")
    x: np.ndarray = file.get_tensor(key)
    if x.shape != (entry["length"],):
        raise ValueError(f"{entry['file']}: {key} has shape {x.shape}, and {INDEX} says ({entry['length']},)")
    return x
