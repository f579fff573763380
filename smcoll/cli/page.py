"""What commands print: tables with sections, and prose, both for 80 columns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from smcoll.cli.words import duration
from smcoll.launch import launch

WIDTH = 80
# To start the ranks of a job, and to let them settle.
SECONDS_A_JOB = 4.0


def page_console() -> Console:
    """As wide as the terminal; a rank's terminal is one that mpiexec made up."""
    console = Console(highlight=False)
    if launch.under_mpiexec() and "COLUMNS" not in os.environ:
        console.width = WIDTH
    return console


@dataclass(frozen=True)
class Column:
    """A column of ``sectioned``. ``wraps``: it gives way where the table is too wide."""

    title: str
    left: bool = False
    wraps: bool = False


def sectioned(columns: Sequence[Column], sections: Sequence[tuple[str, Sequence[Sequence]]],
              title: str = "", width: int = WIDTH) -> Group:
    """One table: a headline for each section instead of a column with the same word in all lines.

    Cells are texts, plain or rich. Headers break between words.
    """
    rows = [row for _, section in sections for row in section]
    widths = [max(map(cell_len, [*column.title.split(), *(
        line for row in rows for line in str(row[number]).split("\n"))]))
        for number, column in enumerate(columns)]
    wrapping = [number for number, column in enumerate(columns) if column.wraps]
    while wrapping and sum(widths) + len(widths) - 1 > width:
        widest = max(wrapping, key=lambda number: widths[number])
        if widths[widest] <= 8:
            break
        widths[widest] -= 1

    def table(**options) -> Table:
        made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, **options)
        for column, cells in zip(columns, widths, strict=True):
            made.add_column(column.title, justify="left" if column.left else "right", width=cells,
                            no_wrap=False, overflow="fold", header_style="bold")
        return made

    parts: list = [Text(title, style="bold")] if title else []
    parts.append(table())
    for name, section in sections:
        body = table(show_header=False)
        for row in section:
            body.add_row(*row)
        if name:
            parts.append(Text(name, style="italic"))
        parts.append(body)
    return Group(*parts)


def prose(console: Console, text: str) -> None:
    """A paragraph of at most 80 columns; what has no blank (a file's name) stays in one piece."""
    lines, line = [], ""
    for word in text.split():
        if line and cell_len(line) + 1 + cell_len(word) > min(WIDTH, console.width):
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    for one in [*lines, line]:
        console.print(Text(one), soft_wrap=True)


def announce(console: Console, text: str, seconds: float) -> None:
    """The first line of a command's output: what it will do, and about how long that takes."""
    prose(console, f"{text}: about {duration(seconds)}")
