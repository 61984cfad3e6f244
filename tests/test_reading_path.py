"""CONTRIBUTING's path through the code stays an afternoon's reading."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATH = re.findall(r"\]\((parlab/[^)]+\.py)\)", CONTRIBUTING)


def lines(file):
    return len((ROOT / file).read_text(encoding="utf-8").splitlines())


def test_the_path_has_at_most_17_files_of_together_at_most_2530_lines():
    assert 12 <= len(set(PATH)) == len(PATH) <= 17
    assert sum(map(lines, PATH)) <= 2530


@pytest.mark.parametrize("file", PATH)
def test_each_file_of_the_path_names_a_paper_with_its_year_at_the_top(file):
    top = ast.get_docstring(ast.parse((ROOT / file).read_text(encoding="utf-8")))
    assert re.search(r"\b(19|20)\d\d\b", top)


@pytest.mark.parametrize("file", [file for file in PATH if "collectives" in file or "pipeline" in file])
def test_each_collective_and_pipeline_file_of_the_path_states_its_invariant_at_the_top(file):
    top = ast.get_docstring(ast.parse((ROOT / file).read_text(encoding="utf-8")))
    assert "invariant" in top.lower()
    assert "collectives" in file or "[b, s, E]" in top


def test_every_strategy_stands_on_the_path_forward_and_backward():
    text = "".join((ROOT / file).read_text(encoding="utf-8") for file in PATH)
    attention = {f"{name}_attention{end}" for name in ("ring", "ulysses", "usp") for end in ("", "_backward")}
    schedules = {"gpipe", "one_f_one_b", "interleaved_one_f_one_b", "zb_h1", "zb_h2", "Interpreter"}
    collectives = {"ring_all_reduce", "recursive_halving_reduce_scatter", "hierarchical_all_reduce"}
    others = {"ColumnParallelLinear", "RowParallelLinear", "Zero", "ShardedWeights", "ShardedGradients", "train_step"}
    defined = set(re.findall(r"^(?:def|class) (\w+)", text, re.M))
    assert attention | schedules | collectives | others <= defined
