"""Break a room on purpose, many times, and see whether its tests notice: `make mutants ROOM=world SIZE=30`.

Each mutant is one small change (a + for a −, < for ≤, a number one larger, a condition turned round, a loop that never
runs). cosmic-ray's operators make it in a copy of the tree; the tree itself is never touched. The seed determines the
sample. The room's tests run against each mutant until one fails, the tests of the changed file first. Changes in
annotations and in `__repr__` are left out.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
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
NO_END = "nothing after"  # a loop or a deadlock, or a machine that is too busy to tell
Mutant = tuple[Path, str, int]  # the file, the operator, and at which of the places where it applies


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All mutants of a file."""
    nodes = list(ast_nodes(get_ast(path.read_text(encoding="utf-8"))))
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        for place in range(sum(len(list(operator.mutation_positions(node))) for node in nodes)):
            yield path, name, place


class _Meaning(ast.NodeTransformer):
    """Removes the parts that no computation uses."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        return ast.AnnAssign(node.target, ast.Constant(None), node.value and self.visit(node.value), node.simple)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | None:
        node.returns = None
        return None if node.name == "__repr__" else self.generic_visit(node)


def meaning(code: str) -> str | None:
    """Equal for two texts that differ only in annotations and in `__repr__`; None if the text is not Python."""
    try:
        return ast.dump(_Meaning().visit(ast.parse(code)))
    except SyntaxError:  # the * and / in a signature are not operators
        return None


def run_tests(tree: Path, *arguments: str, limit: float | None = None) -> tuple[bool, str]:
    """Whether the tests pass within `limit` seconds, and the output of pytest."""
    ours = ["addopts=--import-mode=importlib", "faulthandler_timeout=0"]  # the limit is set here
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *(f"-o{option}" for option in ours)]
    said = {**os.environ, "CI": "true", "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run([*command, *arguments], cwd=tree, env=said, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return False, f"{NO_END} {limit:.0f} s"
    return done.returncode == 0, done.stdout


def seconds_of(tree: Path, tests: list[str]) -> dict[str, float]:
    """The seconds of each test, by its id, before anything is broken."""
    passed, said = run_tests(tree, "-vv", "--durations=0", *tests)
    if not passed:
        sys.exit(f"the tests fail before anything is broken:\n{said[-2000:]}")
    seconds: dict[str, float] = {}
    for took, test in re.findall(r"^ *([0-9.]+)s (?:setup|call|teardown) +(\S.*)$", said, re.MULTILINE):
        seconds[test] = seconds.get(test, 0.0) + float(took)
    return seconds


def in_order(tree: Path, seconds: dict[str, float], path: Path) -> list[str]:
    """The tests of the file itself first, then those in files that name it; among equals the quickest."""
    texts = {name: (tree / name).read_text("utf-8") for name in {test.partition("::")[0] for test in seconds}}

    def place(test: str) -> tuple[bool, bool, float]:
        name = test.partition("::")[0]
        return not name.endswith(f"/test_{path.stem}.py"), f".{path.stem} import" not in texts[name], seconds[test]

    return sorted(seconds, key=place)


def try_mutants(tree: Path, room: str, size: int, seed: int) -> None:
    files = sorted((tree / "parlab" / room).rglob("*.py")) or [tree / f"parlab/{room}.py"]
    tests = sorted((tree / "tests" / room).rglob("test_*.py")) or [tree / f"tests/test_{room}.py"]
    mutants = [mutant for path in files for mutant in mutants_of(path)]
    random.Random(seed).shuffle(mutants)
    print(f"{room}: {len(mutants)} mutants in {len(files)} files, of which {size} are tried", flush=True)
    seconds = seconds_of(tree, [str(file.relative_to(tree)) for file in tests])
    verdicts: list[str] = []
    survivors: list[str] = []
    while mutants and len(verdicts) < size:
        path, operator, place = mutants.pop()
        name, code = str(path.relative_to(tree)), path.read_text("utf-8")
        changed = mutate_code(code, get_operator(f"core/{operator}")(), place)
        if changed is None or meaning(changed) in (None, meaning(code)):
            continue
        (tree / "tests.txt").write_text("\n".join(in_order(tree, seconds, path)), "utf-8")
        path.write_text(changed, "utf-8")
        passed, said = run_tests(tree, "-q", "@tests.txt", limit=300 + 3 * sum(seconds.values()))
        path.write_text(code, "utf-8")
        verdict = "SURVIVES" if passed else "no end" if said.startswith(NO_END) else "killed"
        verdicts.append(verdict)
        last = (said.strip().splitlines() or ["nothing said"])[-1]
        print(f"{len(verdicts):4} {verdict:9} {name:34} {operator:36} {last}", flush=True)
        if passed:
            lines = difflib.unified_diff(code.splitlines(), changed.splitlines(), name, name, n=1, lineterm="")
            survivors.append("\n".join(lines))
    counts = (f"{verdicts.count(verdict)} {verdict}" for verdict in ("killed", "no end", "SURVIVES"))
    print(f"\nOf {len(verdicts)}: {', '.join(counts)}", *survivors, sep="\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room")
    parser.add_argument("--size", type=int, default=30, help="mutants (30)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another sample (0)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "parlab"
        shutil.copytree(ROOT, tree, ignore=NEITHER)
        try_mutants(tree, options.room, options.size, options.seed)


if __name__ == "__main__":
    main()
