"""Each exercise stands in its notebook as a stub, and solved in the notebook of solutions, both as they really ran."""

from pathlib import Path

import nbformat

from parlab.labs import EXERCISES

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SHOWN = {name for name in EXERCISES if list(NOTEBOOKS.glob(f"{name[:2]}_*.ipynb"))}


def stored_checks(folder: Path) -> dict[str, str]:
    """What the stored notebooks in `folder` say of each exercise."""
    said = {}
    for path in sorted(folder.glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            for name in EXERCISES:
                if f'labs.check("{name}"' in cell.source:
                    assert path.name.startswith(name[:2])
                    said[name] = cell.outputs[0].text
    return said


def test_every_exercise_is_a_stub_in_its_notebook():
    assert stored_checks(NOTEBOOKS) == {name: f"{name}: not written yet\n" for name in SHOWN}


def test_every_exercise_is_solved_in_the_notebook_of_solutions():
    said = stored_checks(NOTEBOOKS / "solutions")
    assert said.keys() == SHOWN
    assert all(text.startswith(f"{name}: passed") for name, text in said.items())
