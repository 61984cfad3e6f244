"""`parlab trace`: one training step as a timeline."""

from __future__ import annotations

import argparse

from parlab.cli.options import Words, check_new_file, path, say
from parlab.cli.train import NAMES, add_mesh_and_model, check_size, mesh_and_options


def add(words: Words) -> None:
    """Add the word and its options."""
    word = words.add_parser("trace", help="one training step as a timeline", description=trace.__doc__)
    word.add_argument("file", type=path, help="a Chrome trace, to be opened at ui.perfetto.dev")
    add_mesh_and_model(word)
    word.set_defaults(command=trace, names=NAMES)


def trace(chosen: argparse.Namespace) -> int:
    """Run one training step on a mesh, and write its simulated timeline for Perfetto."""
    from parlab.training_run import read_settings, train

    check_new_file("file", chosen.file)
    settings = read_settings(chosen.config, chosen.model)
    check_size(settings)
    mesh, options = mesh_and_options(chosen)
    run = train(settings, mesh, stop_after=1, **options)
    run.timeline.save_chrome_trace(chosen.file)
    say(f"{chosen.file}: written; open it at ui.perfetto.dev")
    return 0
