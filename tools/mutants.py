"""Break a room on purpose, many times, and see whether its tests notice: `make mutants ROOM=world SIZE=30`.

Each mutant is one small change (a + for a −, < for ≤, a number one larger, a condition turned round, a loop that never
runs), made by cosmic-ray's operators in a copy of the tree: the tree itself is never touched. The sample follows from
the seed. Against each mutant the room's tests run until one fails, the test of the mutated file first. Changes that
only an annotation or a `__repr__` sees are passed over.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).parents[1]
NEITHER = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__")
OPERATORS = [
    *[f"ReplaceBinaryOperator_{pair}" for pair in ("Add_Sub", "Sub_Add", "Mul_FloorDiv", "Div_Mul", "FloorDiv_Mul")],
    *[f"ReplaceBinaryOperator_{pair}" for pair in ("Mod_FloorDiv", "Pow_Mul", "BitAnd_BitOr")],
    *[f"ReplaceComparisonOperator_{pair}" for pair in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq")],
    *[f"ReplaceComparisonOperator_{pair}" for pair in ("Is_IsNot", "IsNot_Is", "Eq_GtE", "Lt_NotEq")],
    *("ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Not", "AddNot", "ReplaceAndWithOr"),
    *("ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceBreakWithContinue"),
    *("ReplaceContinueWithBreak", "NumberReplacer", "ZeroIterationForLoop"),
]
Mutant = tuple[Path, str, int]  # the file, the operator, and at which of the places where it applies


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All that there are of a file."""
    nodes = list(ast_nodes(get_ast(path.read_text(encoding="utf-8"))))
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        for place in range(sum(len(list(operator.mutation_positions(node))) for node in nodes)):
            yield path, name, place


class _Meaning(ast.NodeTransformer):
    """Takes out what nobody computes with."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        return ast.AnnAssign(node.target, ast.Constant(None), node.value and self.visit(node.value), node.simple)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        node.returns = None
        return None if node.name == "__repr__" else self.generic_visit(node)


def meaning(code: str) -> str:
    """The same for two texts that nothing but an annotation or a `__repr__` tells apart."""
    return ast.dump(_Meaning().visit(ast.parse(code)))


def tests_for(room: str, path: Path) -> list[str]:
    """The room's test files: that of the file itself first, then those that name it."""
    files = sorted((ROOT / "tests" / room).glob("test_*.py")) or [ROOT / f"tests/test_{room}.py"]
    named = {file: f".{path.stem} import" in file.read_text(encoding="utf-8") for file in files}
    return [
        str(f.relative_to(ROOT)) for f in sorted(files, key=lambda f: (f.stem != f"test_{path.stem}", not named[f]))
    ]


def run_tests(tree: Path, tests: list[str], limit: float | None = None) -> tuple[bool, str]:
    """Whether they all pass within `limit` seconds, and the last line that they print."""
    command = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    said = {**os.environ, "CI": "true", "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run([*command, *tests], cwd=tree, env=said, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return False, f"nothing after {limit:.0f} s"
    return done.returncode == 0, (done.stdout.strip().splitlines() or [""])[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room")
    parser.add_argument("--size", type=int, default=30, help="mutants (30)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another sample (0)")
    options = parser.parse_args()
    files = sorted((ROOT / "parlab" / options.room).rglob("*.py")) or [ROOT / f"parlab/{options.room}.py"]
    mutants = [mutant for path in files for mutant in mutants_of(path)]
    random.Random(options.seed).shuffle(mutants)
    print(
        f"{options.room}: {len(mutants)} mutants in {len(files)} files, of which {options.size} are tried", flush=True
    )
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "parlab"
        shutil.copytree(ROOT, tree, ignore=NEITHER)
        start = time.monotonic()
        passed, said = run_tests(tree, tests_for(options.room, files[0]))
        if not passed:
            sys.exit(f"the tests fail before anything is broken: {said}")
        limit = 60 + 3 * (time.monotonic() - start)
        survivors = []
        tried = 0
        while mutants and tried < options.size:
            path, operator, place = mutants.pop()
            code = path.read_text(encoding="utf-8")
            changed = mutate_code(code, get_operator(f"core/{operator}")(), place)
            if changed is None or meaning(changed) == meaning(code):
                continue
            tried += 1
            copy = tree / path.relative_to(ROOT)
            copy.write_text(changed, encoding="utf-8")
            survived, said = run_tests(tree, tests_for(options.room, path), limit)
            copy.write_text(code, encoding="utf-8")
            name = str(path.relative_to(ROOT))
            print(f"{tried:4} {'SURVIVES' if survived else 'killed':9} {name:34} {operator:36} {said}", flush=True)
            if survived:
                survivors.append(
                    "\n".join(difflib.unified_diff(code.split("\n"), changed.split("\n"), name, name, "", "", 1, ""))
                )
    print(f"\n{tried - len(survivors)} of {tried} killed", *survivors, sep="\n\n")


if __name__ == "__main__":
    main()
