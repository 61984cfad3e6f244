"""The frame holds: what `import parlab` loads, the arrows between the rooms, and conda's list beside pip's."""

import ast
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_importing_parlab_loads_neither_drawing_nor_testing_libraries():
    heavy = {"matplotlib", "ipywidgets", "IPython", "threadpoolctl", "hypothesis", "safetensors"}
    listing = "import sys, parlab; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", listing], check=True, capture_output=True, text=True).stdout.split()
    assert "parlab" in loaded
    assert heavy.isdisjoint(loaded)


def test_in_ci_hypothesis_draws_the_same_examples_every_time():
    asked = "from tests import conftest; from hypothesis import settings; print(settings.default.derandomize)"
    command = [sys.executable, "-c", asked]
    said = subprocess.run(
        command, check=True, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "CI": "true"}
    )
    assert said.stdout.strip() == "True"


@pytest.mark.skipif(os.name != "posix", reason="there is no shell that lets a process ignore Ctrl-C")
def test_ctrl_c_reaches_the_tests_that_a_shell_starts_in_the_background():
    asked = "import signal; from tests import conftest; print(signal.getsignal(signal.SIGINT).__name__)"
    command = ["sh", "-c", 'trap "" INT; exec "$0" -c "$1"', sys.executable, asked]
    said = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    assert said.stdout.strip() == "default_int_handler"


def test_ci_runs_the_tests_that_make_test_leaves_out_and_those_of_make_test_with_the_newest_libraries():
    selected = re.findall(
        r"^\t\$\(PYTEST\) -m (.+?)(?: tests)?$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M
    )
    assert selected == ['"not slow"', "slow", '"not slow"']
    assert (ROOT / ".ci" / "run").read_text(encoding="utf-8").endswith("\nmake test\nmake test-all\n")
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert "run: bash .ci/run" in workflow
    assert "run: make newest" in workflow


def test_conda_lists_the_same_packages_with_the_same_bounds_as_pip():
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"^ +- ([\w-]+[>=].+)$", text, re.MULTILINE))
    extras = PROJECT["optional-dependencies"]
    python = f"python{PROJECT['requires-python']}"
    assert listed == {python, *PROJECT["dependencies"], *extras["lab"], *extras["test"]}


def test_conda_marks_cupy_and_nccl_as_options_because_not_every_platform_has_them():
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    options = set(re.findall(r"^ +# - (\S+)$", text, re.MULTILINE))
    extras = PROJECT["optional-dependencies"]
    needs = [*extras["cuda12"], *extras["cuda13"]]
    wanted = {re.sub(r"nvidia-|-cu(da)?\d+x?|\[ctk\]|;.*", "", need) for need in needs}
    assert options == wanted


def test_every_needed_package_is_pinned():
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    extras = PROJECT["optional-dependencies"]
    needed = [*PROJECT["dependencies"], *extras["lab"], *extras["test"], *extras["mpi"], *extras["mutants"]]
    unpinned = [need for need in needed if not re.search(rf"^{re.split('[>=;]', need)[0]}==", pins, re.MULTILINE)]
    assert not unpinned
    assert "://" not in pins


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/setup.md"])
def test_a_page_links_only_to_what_exists(page):
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / page).parent.joinpath(link.split("#")[0]).exists()] == []


def test_readme_lists_every_notebook():
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert {path.name for path in ROOT.glob("notebooks/*.ipynb")} == {
        Path(link).name for link in links if "ipynb" in link
    }


AGAINST = [  # the importer, and what it imports as the report says it: of other packages the whole
    ("arrays", "parlab.world"),
    ("arguments", "parlab.world"),
    ("world.run", "parlab.nn"),
    ("nn.stage", "parlab.sequence.stage"),
    ("nn.stage", "numpy"),
    ("sequence.stage", "parlab.zero.stage"),
    ("sequence.stage", "numpy"),
    ("pipeline.stage", "parlab.tensor.stage"),
    ("tensor.stage", "cupy"),
    ("zero.stage", "parlab.train.stage"),
    ("train.stage", "parlab.plan.stage"),
    ("plan.stage", "parlab.views.stage"),
    ("plan.stage", "ipywidgets"),
    ("labs.stage", "parlab.views.stage"),
    ("labs.stage", "matplotlib"),
    ("world.run", "IPython"),
    ("world.values", "parlab.world.engines"),
    ("world.engines", "parlab.world.clock"),
    ("world.engines", "parlab.world.processes"),
]


def test_each_import_against_the_arrows_is_refused(tmp_path):
    _tiny_house(tmp_path)
    for importer, imported in AGAINST:
        place = tmp_path / "parlab" / importer.replace(".", "/")
        with (place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).open("a") as source:
            source.write(f"import {imported}\n")
    report = _lint_imports(tmp_path).stdout
    refused = re.findall(r"is not allowed to import \S+:\s+-\s+parlab\.(\S+) -> (\S+) \(l\.\d+\)\n\n", report)
    assert set(AGAINST) <= set(refused)


@pytest.mark.parametrize("module", ["elsewhere", "world/elsewhere"])
def test_a_file_that_no_arrow_names_is_refused(tmp_path, module):
    _tiny_house(tmp_path)
    (tmp_path / f"parlab/{module}.py").write_text("import parlab.arrays\n", encoding="utf-8")
    assert "1 broken" in _lint_imports(tmp_path).stdout


def test_each_room_may_import_the_one_below_it(tmp_path):
    _tiny_house(tmp_path)
    assert _lint_imports(tmp_path).returncode == 0


BELOW = {  # of each room's one module, what it imports; the world's modules are all known by name
    "world/values": "arrays",
    "nn/stage": "world.values",
    **dict.fromkeys(("sequence/stage", "pipeline/stage", "tensor/stage", "zero/stage"), "nn.stage"),
    "train/stage": "zero.stage",
    "plan/stage": "train.stage",
    **dict.fromkeys(("views/stage", "labs/stage"), "plan.stage"),
}


def _tiny_house(folder: Path) -> None:
    """Every room with one module, which imports one of the room below."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    for room in (
        "",
        *(module.partition("/")[0] for module in BELOW),
        "world/clock",
        "world/engines",
        "world/processes",
    ):
        (folder / "parlab" / room).mkdir()
        (folder / "parlab" / room / "__init__.py").touch()
    (folder / "parlab/arrays.py").touch()
    for module, below in BELOW.items():
        (folder / f"parlab/{module}.py").write_text(f"import parlab.{below}\n", encoding="utf-8")


def _lint_imports(folder: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(folder)}
    )


# Plain English, as far as a machine can check it

INVERTED = re.compile(r"(what|who|whoever|whatever|whose|that which)\b", re.I)


def sentences(path: Path) -> list[str]:
    """The docstrings and comments of a file."""
    text = path.read_text(encoding="utf-8")
    with_docstring = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, with_docstring)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return docstrings + [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]


def test_docstrings_and_comments_name_the_thing_instead_of_beginning_with_what_or_who():
    texts = {(path.name, text) for path in ROOT.glob("parlab/**/*.py") for text in sentences(path)}
    assert sorted((name, text) for name, text in texts if INVERTED.match(text)) == []


ONE_NAME_IN_TWO_ROOMS = {
    "Task": "a span of work in pipeline's bounds, a rank's thread in world",
    "Case": "a case of an exercise in labs, of the published runs in plan",
    "load": "labs.load reads answers, checkpoint.load a model",
    "train": "nn.train trains a serial model, training_run.train a model on a mesh, from a file of settings",
    "save": "labs.save writes answers, checkpoint.save a model",
}


def public_names() -> dict[str, set[str]]:
    """By name of a class, or of a function that a room exports: the rooms that define it."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("parlab/**/*.py"))}
    exported = {
        (node.module, alias.name)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if path.name == "__init__.py" and isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    rooms = defaultdict(set)
    for path, tree in trees.items():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in tree.body:
            is_class = isinstance(node, ast.ClassDef) and not node.name.startswith("_")
            if is_class or (isinstance(node, ast.FunctionDef) and (module, node.name) in exported):
                rooms[node.name].add(module.split(".")[1])
    return rooms


def test_no_two_rooms_give_one_name_two_meanings():
    assert {name for name, rooms in public_names().items() if len(rooms) > 1} <= ONE_NAME_IN_TWO_ROOMS.keys()
