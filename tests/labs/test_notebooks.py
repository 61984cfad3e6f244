"""Each exercise stands in its notebook as a stub, and solved in the notebook of solutions, both as they really ran."""

from pathlib import Path

import nbformat
import pytest

from parlab.labs import EXERCISES

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SHOWN = {name for name in EXERCISES if list(NOTEBOOKS.glob(f"{name[:2]}_*.ipynb"))}

WATCHED = {  # by lesson: the last lines of the cells whose output no run repeats: a watch measured it
    "09_leaving_the_laptop": [
        'views.film({"computed": step, "measured": step.wallclock})',
        "views.film(ways, messages=True)",
        '    print(f"rank {rank}: told 60 and 120 ms, took {1000 * forward:.0f} and {1000 * backward:.0f}")',
        "views.explore_step_costs(schedules, layers, costs)",
        'views.film({"forecast": built, "measured": built.wallclock})',
    ]
}


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


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.rglob("*.ipynb")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_stored_notebook_holds_nothing_of_the_machine_that_ran_it(path):
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    folded = {"jp-MarkdownHeadingCollapsed": True}  # a section of *further*, as the notebook opens
    watched = {"tags": ["nbval-ignore-output"]}  # a film of times that a watch has taken
    known = {"markdown": [{}, folded], "code": [{}, watched]}
    assert all(cell.metadata in known[cell.cell_type] for cell in notebook.cells)
    if path.parent == NOTEBOOKS:
        assert [cell.source.splitlines()[-1] for cell in code if cell.metadata] == WATCHED.get(path.stem, [])
    assert all(output.output_type != "error" and output.get("name") != "stderr" for output in outputs)
    texts = [output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs]
    assert not [text for text in texts if " at 0x" in text or "/home/" in text or "ipykernel" in text]
