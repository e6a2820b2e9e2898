"""The shape of the package: imports go down only, rules are pure, SQL lives with the stores.

Files are parsed, not imported, so nothing escapes: an import under TYPE_CHECKING or inside a function counts
like any other.  When a promise below breaks, move the code; when the house itself has changed, change LAYERS.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

# The house, from the ground up.  A line is a layer: its modules may import from every layer below it.  Words
# in one string are neighbours that may import each other; two strings in a layer stand apart and may not.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("serialization", "clock", "digests", "durations", "process_forks", "keywords", "ids", "events observe"),
    ("arguments",),
    ("kernel",),
    ("definitions", "stores"),
    ("commit",),
    ("execution",),
    ("replay", "worker"),
    ("app",),
    ("aio",),
    ("dashboard",),
    ("testing", "contrib"),
    ("cli demo __main__",),
)
FRONT_DOOR = "__init__"  # re-exports everything, and so may import everything
MAY_USE_THE_FRONT_DOOR = {"cli", "demo", "testing", "__main__"}  # written as a user would write it
MAY_HOLD_SQL = {"stores"}
FORBIDDEN_MODULES = {
    "kernel": {"asyncio", "logging", "os", "random", "socket", "sqlite3", "threading", "time"},
}
MOST_LINES = 600
MOST_WRITE_VERBS = 30
# What a verb of a store calls to write; one that writes into a user's transaction takes it as an argument.
WRITES = {"write", "_changing", "_again", "_write_batch", "_slowly", "_watch"}

PACKAGE = "detent"
SOURCE = Path(__file__).parents[2] / "src" / PACKAGE
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for group in layer for name in group.split()}
GROUP = {name: group for layer in LAYERS for group in layer for name in group.split()}
SQL = re.compile(r"\s*(--[^\n]*\n\s*)*(SELECT|INSERT|UPDATE|DELETE|CREATE)\s")


@dataclass(frozen=True)
class Module:
    """One source file: `detent.kernel.settle`, in the unit `kernel`."""

    name: str
    source: str
    is_package: bool = False

    @property
    def unit(self) -> str:
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else FRONT_DOOR

    @property
    def tree(self) -> ast.Module:
        return _parse(self.source)


def test_every_module_has_a_place_in_the_layers() -> None:
    homeless = {module.unit for module in package()} - HEIGHT.keys() - {FRONT_DOOR}
    assert not homeless, (
        f"add to LAYERS in {Path(__file__).name}, where it belongs: {', '.join(sorted(homeless))}"
    )


def test_imports_only_go_down() -> None:
    assert not [wrong for module in package() for wrong in imports_that_go_up(module)]


def test_the_package_does_not_import_its_own_front_door() -> None:
    assert not [wrong for module in package() for wrong in uses_of_the_front_door(module)]


def test_no_module_imports_itself_in_a_circle() -> None:
    names = {module.name for module in package()}
    graph = {module.name: {_file_of(name, names) for name in imported(module)} for module in package()}
    # The front door stands outside: importing it from inside is another test's business.
    inside = {name: needs - {None, PACKAGE, name} for name, needs in graph.items() if name != PACKAGE}
    try:
        TopologicalSorter(inside).prepare()
    except CycleError as error:
        raise AssertionError("these import each other: " + " -> ".join(reversed(error.args[1]))) from None


def test_the_kernel_is_pure() -> None:
    assert not [wrong for module in package() for wrong in forbidden_imports(module)]


def test_sql_lives_with_the_stores() -> None:
    assert not [wrong for module in package() for wrong in sql_constants(module)]


def test_no_file_is_too_long_to_read() -> None:
    lengths = {module.name: len(module.source.splitlines()) for module in package()}
    assert not {name: lines for name, lines in lengths.items() if lines > MOST_LINES}


def test_the_store_has_few_verbs_that_write() -> None:
    verbs = sorted(verb for module in package() for verb in write_verbs(module))
    assert {"apply", "change", "claim", "claim_limited", "fire_schedules", "watch"} <= set(verbs)
    assert len(verbs) <= MOST_WRITE_VERBS, ", ".join(verbs)


def test_operations_and_requests_are_told_apart_by_their_class_alone() -> None:
    """Hot paths compare `type(one) is Record`: that is only right while nothing is derived from these."""
    told_apart = "Start Record Park Note Settle Send Decide Enqueue Settled Decided Commit Body Wait MainBody"
    derived = {
        f"{node.name}({base.id})"
        for module in package()
        for node in ast.walk(_parse(module.source))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if isinstance(base, ast.Name) and base.id in told_apart.split()
    }
    assert derived == {"TransactionalBody(Body)"}  # which goes its own way


def test_no_file_is_a_drawer_for_odds_and_ends() -> None:
    assert not [module.name for module in package() if module.name.endswith(".utils")]


def test_nothing_is_global() -> None:
    assert not [
        f"{module.name}:{node.lineno} says global {', '.join(node.names)}"
        for module in package()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Global)
    ]


# -- The rules themselves are tested too: a check that sees nothing passes for ever ----------------


def test_an_import_that_goes_up_is_seen_wherever_it_hides() -> None:
    hidden = """
if TYPE_CHECKING:
    from detent.app import App
def late():
    import detent.worker.pool
    from ..stores import driver
    importlib.import_module("detent.cli")
"""
    seen = list(imports_that_go_up(Module("detent.kernel.settle", hidden)))
    assert [wrong.split(" imports ")[1] for wrong in seen] == [
        "detent.app.App",
        "detent.worker.pool",
        "detent.stores.driver",
        "detent.cli",
    ]


def test_neighbours_may_import_each_other_and_strangers_may_not() -> None:
    source = "from detent.definitions.context import Context\nfrom detent.errors import DetentError\n"
    assert not list(imports_that_go_up(Module("detent.definitions.functions", source)))
    assert list(imports_that_go_up(Module("detent.stores.store", source)))


def test_a_relative_import_is_followed_to_where_it_leads() -> None:
    source = "from . import rows\nfrom .graph import compiled\nfrom ..errors import DetentError\n"
    names = ["detent.kernel.rows", "detent.kernel.graph.compiled", "detent.errors.DetentError"]
    assert list(imported(Module("detent.kernel.settle", source))) == names
    assert list(imported(Module("detent.kernel", source, is_package=True)))[:2] == names[:2]


def test_the_front_door_is_for_those_who_write_as_a_user_would() -> None:
    source = "import detent\nfrom detent import step\nfrom .. import errors\nimport detent.errors\n"
    assert len(list(uses_of_the_front_door(Module("detent.worker.pool", source)))) == 3
    assert not list(uses_of_the_front_door(Module("detent.cli.demo", source)))


def test_a_clock_or_a_socket_in_the_kernel_is_seen() -> None:
    source = "import os.path\nfrom time import monotonic\nfrom datetime import datetime\n"
    assert len(list(forbidden_imports(Module("detent.kernel.settle", source)))) == 2
    assert not list(forbidden_imports(Module("detent.worker.pool", source)))


def test_sql_is_told_from_prose() -> None:
    source = '''
"""Update the worker."""
CLAIM = """
-- Hand out what is due.
SELECT id FROM detent_execution
"""
DROP = f"DELETE FROM {table}"
'''
    assert len(list(sql_constants(Module("detent.worker.pool", source)))) == 2
    assert not list(sql_constants(Module("detent.stores.postgres.driver", source)))


# -- Reading the source ----------------------------------------------------------------------------


@cache
def package() -> tuple[Module, ...]:
    return tuple(_read(path) for path in sorted(SOURCE.rglob("*.py")))


def imports_that_go_up(module: Module) -> Iterator[str]:
    if module.unit == FRONT_DOOR or module.unit not in HEIGHT:
        return
    for name in imported(module):
        unit = _unit_of(name)
        if unit is not None and not _may_import(module.unit, unit):
            yield f"{module.name} imports {name}"


def uses_of_the_front_door(module: Module) -> Iterator[str]:
    if module.unit in MAY_USE_THE_FRONT_DOOR | {FRONT_DOOR}:
        return
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=aliases) if any(alias.name == PACKAGE for alias in aliases):
                yield f"{module.name}:{node.lineno} imports detent itself; import the part that is meant"
            case ast.ImportFrom() if _origin(module, node) == PACKAGE:
                yield f"{module.name}:{node.lineno} imports from detent itself; import from the part"


def forbidden_imports(module: Module) -> Iterator[str]:
    for name in imported(module):
        if name.split(".")[0] in FORBIDDEN_MODULES.get(module.unit, set()):
            yield f"{module.name} imports {name}"


def sql_constants(module: Module) -> Iterator[str]:
    if module.unit in MAY_HOLD_SQL:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.match(node.value):
            yield f"{module.name}:{node.lineno} holds SQL: {node.value.strip()[:40]!r}"


def write_verbs(module: Module) -> Iterator[str]:
    """The public methods of Store and of its parts, which have a file in stores/verbs/, that write."""
    if module.name != "detent.stores.store" and not module.name.startswith("detent.stores.verbs."):
        return
    classes = [node for node in module.tree.body if isinstance(node, ast.ClassDef)]
    for cls in classes:
        if not (cls.name == "Store" or any(ast.unparse(base) == "BaseStore" for base in cls.bases)):
            continue
        for verb in cls.body:
            if isinstance(verb, ast.FunctionDef) and not verb.name.startswith("_") and _writes(verb):
                yield verb.name


def _writes(verb: ast.FunctionDef) -> bool:
    called = {node.attr for node in ast.walk(verb) if isinstance(node, ast.Attribute)}
    return bool(called & WRITES) or "tx" in {argument.arg for argument in verb.args.args}


def imported(module: Module) -> Iterator[str]:
    """Every dotted name that the module imports, from anywhere in it, in the order of its lines."""
    for node in sorted(_import_nodes(module.tree), key=lambda node: node.lineno):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(names=aliases):
                yield from (f"{_origin(module, node)}.{alias.name}" for alias in aliases)
            case ast.Call(args=[ast.Constant(value=str(name)), *_]):
                yield name


def _import_nodes(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom | ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__"))
        ):
            yield node


def _origin(module: Module, node: ast.ImportFrom) -> str:
    """The absolute name of what stands after `from`."""
    if node.level == 0:
        return node.module or ""
    up = node.level - 1 if module.is_package else node.level
    parts = module.name.split(".")
    return ".".join([*parts[: len(parts) - up], *filter(None, [node.module])])


def _unit_of(name: str) -> str | None:
    """`kernel` for `detent.kernel.settle`; None for what is not ours, or does not say which part."""
    root, _, rest = name.partition(".")
    return rest.split(".")[0] if root == PACKAGE and rest.split(".")[0] in HEIGHT else None


def _may_import(importer: str, unit: str) -> bool:
    return GROUP[unit] == GROUP[importer] or HEIGHT[unit] < HEIGHT[importer]


def _file_of(name: str, names: set[str]) -> str | None:
    """The module that holds an imported name: `detent.errors` for `detent.errors.DetentError`."""
    while name and name not in names:
        name = name.rpartition(".")[0]
    return name or None


def _read(path: Path) -> Module:
    parts = [PACKAGE, *path.relative_to(SOURCE).with_suffix("").parts]
    is_package = parts[-1] == "__init__"
    return Module(".".join(parts[:-1] if is_package else parts), path.read_text(), is_package)


@cache
def _parse(source: str) -> ast.Module:
    return ast.parse(source)
