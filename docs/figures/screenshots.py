"""Measures and draws again what the documentation shows of commands: output and figures.

    python docs/figures/screenshots.py [compare] [plot-compare] [plot-sweep]

Two minutes on two idle cores. ``compare.svg`` is the command's own output at 80 columns, with its
colours, put into a drawing by rich; the others are what ``--plot`` writes (needs matplotlib).
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text

from smcoll.launch import launch

HERE = Path(__file__).resolve().parent
COLUMNS = 80
# Around what rich draws. Its own frame names fonts that would be fetched from the network.
FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" class="rich-terminal" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px;
line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def smcoll(*arguments: str, **environment: str) -> str:
    """What a command prints on standard output; without a table of this machine's."""
    return subprocess.run(
        launch.own_command(*arguments), check=True, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, env={**os.environ, "SMCOLL_TABLE": "off", **environment}).stdout


def screenshot(name: str, *arguments: str) -> None:
    """What a command prints, in its colours, below its own command line."""
    output = smcoll(*arguments, COLUMNS=str(COLUMNS), FORCE_COLOR="1")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ smcoll {' '.join(arguments)}", style="bold"))
    console.print(Text.from_ansi(output.rstrip()))
    drawing = console.export_svg(title="", theme=DEFAULT_TERMINAL_THEME, unique_id=name,
                                 code_format=FRAME)
    drawing = re.sub(r"[ \t]+$", "", drawing, flags=re.MULTILINE)
    (HERE / f"{name}.svg").write_text(drawing.rstrip() + "\n")


def plot(name: str, *arguments: str) -> None:
    """What a command's ``--plot`` draws."""
    file = HERE / f"{name}.svg"
    smcoll(*arguments, "--plot", str(file))
    file.write_text(re.sub(r"[ \t]+$", "", file.read_text(), flags=re.MULTILINE))


FIGURES = {
    "compare": lambda: screenshot(
        "compare", "compare", "-n", "2", "--factor", "32", "--no-point-to-point"),
    "plot-compare": lambda: plot(
        "plot-compare", "compare", "-n", "2", "--factor", "8", "--collectives",
        "bcast,allreduce,alltoall"),
    "plot-sweep": lambda: plot(
        "plot-sweep", "sweep", "-n", "2", "--collectives", "allreduce"),
}

if __name__ == "__main__":
    for figure in sys.argv[1:] or FIGURES:
        FIGURES[figure]()
