"""Every notebook of the tour, read in JupyterLab as a learner reads it."""

from pathlib import Path

import pytest

QUICK = ("00_ranks_and_messages", "02_ring_attention")  # read by `make test`
NOTEBOOKS = [
    pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.slow)
    for path in sorted(Path(__file__).parents[2].glob("notebooks/[0-9]*.ipynb"))
]


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_all_cells_run_and_every_control_changes_a_picture(reader, notebook):
    complaints = reader.read(notebook)
    assert not complaints, "\n\n".join(complaints)
