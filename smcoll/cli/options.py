"""Options that several commands have, alike in all of them, and the groups that help shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RANKS, WORK, PRECISION = "Ranks", "What is measured", "How long and how exactly"
SWITCHES, FILES, OPPONENTS = "On and off", "Files", "Opponents"
MACHINE, PREDICTED = "The machine", "What is predicted"
SHOWN, PROGRAM = "What is shown", "The program"
# Of a flag: help has no column for its type then.
FLAG = ""

Counts = Annotated[str, typer.Option(
    "-n", "-np", "--ranks", show_default="one a core", metavar="N,...", rich_help_panel=RANKS,
    help="A job of its own for each of these numbers.")]
MessageSize = Annotated[str, typer.Option(
    "-m", "--message-size", metavar="MIN:MAX", rich_help_panel=WORK,
    help="Bytes of the vector, or of the block for one rank.")]
Factor = Annotated[int, typer.Option(
    min=2, metavar="N", rich_help_panel=WORK, help="From size to size.")]
SizeList = Annotated[str, typer.Option(
    "--sizes", metavar="BYTES,...", show_default=False, rich_help_panel=WORK,
    help="These sizes, instead of -m and --factor.")]
Iterations = Annotated[int, typer.Option(
    "-i", "--iterations", min=0, metavar="N", show_default="what fits", rich_help_panel=PRECISION,
    help="Calls in a block.")]
Repetitions = Annotated[int, typer.Option(
    "-r", "--repetitions", min=1, metavar="N", rich_help_panel=PRECISION,
    help="Blocks of each, by turns.")]
Warmup = Annotated[int, typer.Option(
    "-x", "--warmup", min=0, metavar="N", show_default="a few percent", rich_help_panel=PRECISION,
    help="Calls before the first block.")]
Validate = Annotated[bool, typer.Option(
    "-c/-C", "--validate/--no-validate", metavar=FLAG, show_default="-c", rich_help_panel=SWITCHES,
    help="Check results, in calls that are not timed.")]
Element = Annotated[str, typer.Option(
    "-T", "--type", metavar="TYPE", rich_help_panel=WORK,
    help="float64, float32, int64, int32, int8, ...")]
Root = Annotated[str, typer.Option(
    "-k", "--root-rank", metavar="RANK", rich_help_panel=WORK,
    help="Of rooted collectives; rotate: all, by turns.")]
Offset = Annotated[int, typer.Option(
    min=0, max=4095, metavar="BYTES", rich_help_panel=PRECISION,
    help="Where in a page arrays begin; numpy's do at 16.")]
Hosts = Annotated[str, typer.Option(
    "--hosts", metavar="HOST:N,...", show_default="this one", rich_help_panel=RANKS,
    help="Start them there, filled in this order; with Python and smcoll at the same paths.")]
HostFile = Annotated[Path | None, typer.Option(
    "--hostfile", metavar="FILE", rich_help_panel=RANKS,
    help="The same, by lines HOST, HOST:N or HOST slots=N.")]
Layout = Annotated[str | None, typer.Option(
    metavar="CPUS", show_default="mpiexec's", rich_help_panel=RANKS,
    help="Bind them: compact, spread, or CPUs (0,2,4-7).")]
JSONFile = Annotated[Path | None, typer.Option(
    "--json", metavar="FILE", rich_help_panel=FILES, help="Everything, for programs.")]
CSVFile = Annotated[Path | None, typer.Option(
    "--csv", metavar="FILE", rich_help_panel=FILES, help="A line for each row.")]
PlotFile = Annotated[Path | None, typer.Option(
    "--plot", metavar="FILE", rich_help_panel=FILES,
    help="A figure (.png, .svg, .pdf); needs matplotlib.")]
Yes = Annotated[bool, typer.Option(
    "-y", "--yes", metavar=FLAG, show_default=False, rich_help_panel=RANKS,
    help="Don't ask: more than 8 a core, half of the memory.")]
