"""`parlab doctor`: what is usable here."""

from __future__ import annotations

import argparse

from parlab.cli.options import Words, say


def add(words: Words) -> None:
    """Add the word."""
    words.add_parser("doctor", help="what is usable here", description=doctor.__doc__).set_defaults(command=doctor)


def doctor(chosen: argparse.Namespace) -> int:
    """Try what the notebooks need, and what they can use; the exit status is 0 if they can run."""
    from parlab.cli.checks import findings, table  # not at the top: the other words need not start ranks

    found = findings()
    say(table(found))
    return int(any(finding.needed and not finding.works for finding in found))
