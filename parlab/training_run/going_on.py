"""Going on from a checkpoint: the notes that a run leaves in it, and the steps that it has behind it.

The notes are the settings, field by field, and beside them the checksum of the text: a run goes on with the text that
its checkpoint was trained on, or not at all.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from parlab.train import read_index
from parlab.training_run.settings import Settings
from parlab.training_run.text import Text

CHECKSUM = "text_checksum"  # beside the names of the settings


def notes_of(settings: Settings, text: Text) -> dict[str, Any]:
    """The notes of a run, for `parlab.train.save`."""
    return {**asdict(settings), CHECKSUM: text.checksum}


def settings_of_checkpoint(folder: Path) -> Settings:
    """The settings of the run that saved the checkpoint in the folder.

    Raises:
        ValueError: its notes are not those of a run.
    """
    notes = read_index(folder)["notes"]
    names = [field.name for field in fields(Settings)]
    if notes.keys() != {*names, CHECKSUM}:
        otherwise = "so it does not say what is trained; go on with parlab.train.load"
        raise ValueError(f"{folder}: its checkpoint was not written by `parlab train`, {otherwise}")
    return Settings(**{name: notes[name] for name in names})


def steps_done(folder: Path, settings: Settings, text: Text) -> int:
    """How many steps the checkpoint has behind it. A ValueError, if this run cannot go on from there."""
    index = read_index(folder)
    done, rest = divmod(index["progress"]["samples"], settings.batch)
    if rest:
        raise ValueError(
            f"{folder}: its checkpoint has progress samples={done * settings.batch + rest}: "
            f"no whole number of batches of {settings.batch}; go on with parlab.train.load"
        )
    if index["notes"].get(CHECKSUM) != text.checksum:
        source = "the drawn text" if settings.text is None else f"text={settings.text!r}"
        raise ValueError(
            f"{folder}: {source} is not the text that its checkpoint was trained on: "
            "put that text back, or train in another folder"
        )
    if done >= settings.steps:
        raise ValueError(f"{folder}: all of its {settings.steps} steps are done: nothing is left to train")
    return done
