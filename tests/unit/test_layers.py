"""The package's folders are layers: who imports whom, at run time and at compile time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "smcoll"

# From the bottom up. What stands in one line knows nothing of the lines below it.
LAYERS = (
    "errors", "algorithms", "base",
    "config",
    "mpi", "topology", "datatype", "memory",
    "segment",
    "sync",
    "barrier",
    "coll",
    "algos",
    "tuning", "buffers",
    "engine",
    "internode",
    "comm",
    "interpose",
    "launch",
    "bench",
    "cli",
)
# Commands measure and run what users import: the package itself.
USERS = ("bench", "cli", "__main__")
AT_THE_TOP = 30

IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(?P<parent>smcoll[\w.]*|\.+[\w.]*)[ \t]+c?import[ \t]+"
    r"(?P<names>\([^)]*\)|[^\n]*)|c?import[ \t]+(?P<module>smcoll[\w.]*))", re.MULTILINE)


def sources() -> dict[str, list[Path]]:
    """Each module's files, by its name."""
    found: dict[str, list[Path]] = {}
    for file in PACKAGE.rglob("*.p*"):
        if file.suffix in (".py", ".pyx", ".pxd"):
            name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
            found.setdefault(name.removesuffix(".__init__"), []).append(file)
    return found


def imported(file: Path, modules) -> set[str]:
    """What a file imports or cimports of this package, docstrings apart."""
    text = re.sub(r'""".*?"""', "", file.read_text(), flags=re.DOTALL)
    found = set()
    for statement in IMPORT.finditer(text):
        if statement["module"]:
            found.add(statement["module"])
            continue
        assert not statement["parent"].startswith("."), f"{file}: imports are absolute"
        names = re.sub(r"#.*", "", statement["names"]).strip("()")
        for name in (part.split()[0] for part in names.split(",") if part.strip()):
            inner = f"{statement['parent']}.{name}"
            found.add(inner if inner in modules else statement["parent"])
    return found


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    modules = sources()
    return {module: set().union(*(imported(file, modules) for file in files))
            for module, files in modules.items()}


def layer(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def test_imports_point_downwards(imports):
    upwards = [
        f"{module} imports {other}" for module, others in imports.items() for other in others
        if layer(module) in LAYERS and layer(other) in LAYERS
        and LAYERS.index(layer(other)) > LAYERS.index(layer(module))]
    assert not upwards


def test_every_module_is_in_a_layer(imports):
    assert {layer(module) for module in imports} - {"smcoll", "__main__"} == set(LAYERS)


def test_only_commands_import_the_package_as_users_do(imports):
    importers = {module for module, others in imports.items() if "smcoll" in others}
    assert {layer(module) for module in importers} <= set(USERS)


def test_no_imports_go_in_circles(imports):
    finished: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in finished:
            for other in sorted(imports.get(module, set()) - {module}):
                visit(other, [*path, module])
            finished.add(module)

    for module in imports:
        visit(module, [])


def test_the_top_of_the_package_can_be_read_at_a_glance():
    entries = {path.name for path in PACKAGE.iterdir()
               if not path.name.startswith("__pycache__")
               and path.suffix not in (".so", ".c", ".html")}
    assert len(entries) <= AT_THE_TOP, sorted(entries)
