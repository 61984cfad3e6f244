"""How much a reader has to hold at once: the closure of a strategy, in code lines.

The closure of a definition is the definition and every definition inside parlab that its code names, and theirs. Lines
are code lines: no docstring, comment, import or blank. `parlab.world` is a contract, whose inside nobody has to read
here, so it is not followed. Annotations are not followed either: they run nothing.

    python -m tools.closure                           # the table of CONTRIBUTING.md, as it is now
    python -m tools.closure --write                   # the same, written there
    python -m tools.closure parlab.zero.step.zero_1   # one closure, definition by definition
"""

from __future__ import annotations

import ast
import functools
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- closures -->", "<!-- end of closures -->"


class Limit(NamedTuple):
    """The most code lines that the closure of `names` may have in its own `room`, or in all of parlab."""

    names: tuple[str, ...]
    lines: int
    room: str = "parlab"


def _attention(method: str, lines: int, *, backward: bool = False) -> Limit:
    forward = f"parlab.sequence.{method}_attention"
    return Limit((forward, f"{forward}_backward") if backward else (forward,), lines, "parlab.sequence")


LIMITS = (
    _attention("ring", 200),
    _attention("ring", 300, backward=True),
    _attention("window", 200),
    _attention("tree", 200),
    _attention("double_ring", 200),
    _attention("allgather", 200),
    _attention("ulysses", 300),
    _attention("usp", 310),
    Limit(("parlab.tensor.ColumnParallelLinear",), 200),
    Limit(("parlab.tensor.RowParallelLinear",), 200),
    Limit(("parlab.pipeline.one_f_one_b",), 200),
    Limit(("parlab.pipeline.run_schedule",), 680),
    Limit(("parlab.zero.step.zero_1",), 60),
    Limit(("parlab.zero.Zero",), 740),
    Limit(("parlab.world.collectives.ring.ring_all_reduce",), 60),
)
ELSEWHERE = ("parlab.nn.llama", "parlab.nn.config", "parlab.world.run", "parlab.world.timeline", "parlab.files")


class Definition(NamedTuple):
    """A function, a class or an assignment at the top of a module."""

    module: str
    name: str


class Module:
    """The definitions of a file at its top, and where the names that it imports come from."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        source = path.read_text()
        self.code = _code_lines(source)
        self.definitions: dict[str, ast.stmt] = {}
        self.imported: dict[str, tuple[str, str | None]] = {}
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for statement in ast.parse(source).body:
            self.imported |= _imports(statement, package)
            for defined in _defined(statement):
                self.definitions[defined] = statement


@functools.cache
def module(name: str) -> Module | None:
    """The module of parlab with this name, or None."""
    place = ROOT.joinpath(*name.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.exists() and name.split(".")[0] == "parlab":
            return Module(name, path)
    return None


def find(dotted: str) -> Definition:
    """The place where a dotted name is defined, followed through the packages that pass it on.

    Raises:
        ValueError: parlab defines no such name.
    """
    place, _, name = dotted.rpartition(".")
    here = module(place)
    if here is not None and name in here.definitions:
        return Definition(place, name)
    if here is not None and name in here.imported:
        origin, original = here.imported[name]
        if original is not None:
            return find(f"{origin}.{original}")
    raise ValueError(f"{dotted}: parlab defines no such name")


def closure(*names: str) -> list[Definition]:
    """The definitions that `names` reach, themselves first, in the order in which a reader meets them."""
    met = [find(name) for name in names]
    for definition in met:  # grows while it is walked
        if definition.module.startswith("parlab.world") and not names[0].startswith("parlab.world"):
            continue
        met += [reached for reached in dict.fromkeys(_reached(definition)) if reached not in met]
    return met


def code_lines(definitions: list[Definition], room: str = "parlab") -> int:
    """The code lines of those definitions that stand in `room`, the world's left out unless they begin there."""
    lines = set()
    for place, name in definitions:
        home = module(place)
        world = place.startswith("parlab.world") and not definitions[0].module.startswith("parlab.world")
        if home is not None and not world and f"{place}.".startswith(f"{room}."):
            lines |= {(place, line) for line in _lines(home.definitions[name]) if line in home.code}
    return len(lines)


def table() -> str:
    """The table of CONTRIBUTING.md."""
    rows = ["| strategy | its room | limit | all but the world | files |", "|---|---|---|---|---|"]
    for names, lines, room in LIMITS:
        met = closure(*names)
        files = len({place for place, _ in met if not place.startswith("parlab.world") or "world" in names[0]})
        title = names[0].rpartition(".")[2] + (" and its backward" if len(names) > 1 else "")
        own = code_lines(met, room) if room != "parlab" else code_lines(met, names[0].rpartition(".")[0])
        limit = f"{lines}" if room != "parlab" else f"{lines} in all"
        rows.append(f"| `{title}` | {own} | {limit} | {code_lines(met)} | {files} |")
    return "\n".join(rows).replace(" and its backward`", "` and its backward")


def main(arguments: list[str]) -> None:
    """Print the table, write it, or print the closure of one name."""
    if arguments == ["--write"]:
        before, _, rest = CONTRIBUTING.read_text().partition(BEGIN)
        CONTRIBUTING.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")
    elif arguments:
        met = closure(*arguments)
        for definition in met:
            print(f"{code_lines([definition]):5}  {definition.module}.{definition.name}")
        print(f"{code_lines(met):5}  in all")
    else:
        print(table())


def _reached(definition: Definition) -> Iterator[Definition]:
    """The definitions in parlab that the code of one names."""
    home = module(definition.module)
    assert home is not None
    statement = home.definitions[definition.name]
    package = home.name.rpartition(".")[0]
    imported = dict(home.imported)
    for node in ast.walk(statement):
        imported |= _imports(node, package)
    for node in _code(statement):
        if isinstance(node, ast.Name) and node.id in home.definitions:
            yield Definition(home.name, node.id)
        elif isinstance(node, ast.Name) and node.id in imported:
            origin, original = imported[node.id]
            if original is not None and module(f"{origin}.{original}") is None:
                yield from _found(f"{origin}.{original}")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            origin, original = imported[node.value.id]
            yield from _found(f"{origin if original is None else f'{origin}.{original}'}.{node.attr}")


def _found(dotted: str) -> Iterator[Definition]:
    try:
        yield find(dotted)
    except ValueError:
        return  # another library's


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below `node` that run: no annotation."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _code(child)


def _imports(node: ast.AST, package: str) -> dict[str, tuple[str, str | None]]:
    """The names that an import of parlab's brings: name -> (module, its name there, or None for the module itself)."""
    if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("parlab")):
        origin = node.module or ""
        if node.level:
            base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            origin = f"{base}.{origin}".rstrip(".")
        return {alias.asname or alias.name: (origin, alias.name) for alias in node.names}
    if isinstance(node, ast.Import):
        return {alias.asname: (alias.name, None) for alias in node.names if alias.asname and "parlab" in alias.name}
    return {}


def _defined(statement: ast.stmt) -> list[str]:
    """The names that a statement at the top of a module defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return []


def _lines(statement: ast.stmt) -> range:
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
    return range(first, (statement.end_lineno or first) + 1)


def _code_lines(source: str) -> frozenset[int]:
    """The numbers of the lines that hold code: no docstring, comment, import or blank."""
    passed = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in passed:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_text(node):
            assert isinstance(node, ast.stmt)
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return frozenset(lines)


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is a text alone, as a docstring is."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


if __name__ == "__main__":
    main(sys.argv[1:])
