"""Settings of Sphinx, and two checks of the pages: named tests exist, lines are not too long."""

from __future__ import annotations

import re
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = False      # the reference is read from modules; no MPI job

import smcoll  # noqa: E402
from smcoll import config as settings  # noqa: E402

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
LONGEST_LINE = 100

project = "smcoll"
author = "the authors of smcoll"
release = version = smcoll.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"smcoll {release}"
html_copy_source = False

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "none"
# Default values are MPI's objects: as they are written in the source.
autodoc_preserve_defaults = True

# The names that are linked to stand in small files here: building needs no network.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", "inventories/python.txt"),
    "numpy": ("https://numpy.org/doc/stable", "inventories/numpy.txt"),
    "mpi4py": ("https://mpi4py.readthedocs.io/en/stable", "inventories/mpi4py.txt"),
}


def defined_tests() -> set[str]:
    """The names of all tests."""
    return {name for file in TESTS.rglob("test_*.py")
            for name in re.findall(r"^\s*def (test_\w+)", file.read_text(), re.MULTILINE)}


def table_of_settings() -> str:
    """``smcoll info --config`` as a list of definitions."""
    lines = []
    for row in settings.describe():
        default = f"default `{row['default']}`" if row["default"] else "no default"
        unit = f" {row['unit']}" if row["unit"] else ""
        text = row["documentation"]
        lines += [f"`{row['name']}`", f": `{row['environment']}`, {default}{unit}. "
                  f"{text[0].upper()}{text[1:]}.", ""]
    return "\n".join(lines)


def read_page(app, page: str, text: list[str]) -> None:
    """Put generated text in, and check what people wrote."""
    from sphinx.util.logging import getLogger

    logger = getLogger("smcoll")
    for number, line in enumerate(text[0].split("\n"), 1):
        if len(line) > LONGEST_LINE:
            logger.warning(f"line of {len(line)} characters", location=(page, number))
    for name in set(re.findall(r"`(test_\w+)`", text[0])) - defined_tests():
        logger.warning(f"there is no test {name}", location=page)
    text[0] = text[0].replace("<!-- settings -->", table_of_settings())


def setup(app) -> None:
    app.connect("source-read", read_page)
