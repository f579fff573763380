"""Options that several commands have, alike in all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Counts = Annotated[str, typer.Option(
    "-n", "--ranks", show_default="one for each core, or as many as the hosts take",
    metavar="N[,N...]", help="Ranks; jobs of their own for each number.")]
MessageSize = Annotated[str, typer.Option(
    "-m", "--message-size", metavar="[MIN:]MAX",
    help="Message sizes in bytes: of the vector, or of the block for one rank.")]
Factor = Annotated[int, typer.Option(
    min=2, help="From size to size: by this factor, and MAX itself.")]
SizeList = Annotated[str, typer.Option(
    "--sizes", metavar="BYTES[,BYTES...]", show_default="by -m and --factor",
    help="These message sizes.")]
Iterations = Annotated[int, typer.Option(
    "-i", "--iterations", min=0, show_default="as many as fit the budget",
    help="Calls in a block.")]
Warmup = Annotated[int, typer.Option(
    "-x", "--warmup", min=0, show_default="a few percent of the budget",
    help="Calls before the first block.")]
Validate = Annotated[bool, typer.Option(
    "-c/-C", "--validate/--no-validate",
    help="Check results against numpy, on calls that are not timed.")]
Element = Annotated[str, typer.Option(
    "-T", "--type", help="Type of the elements: float64, float32, int64, int32, int8, ...")]
Root = Annotated[str, typer.Option(
    "-k", "--root-rank", metavar="RANK|rotate",
    help="Root of rooted collectives; rotate: every rank equally often.")]
Offset = Annotated[int, typer.Option(
    min=0, max=4095, help="Where in a page the arrays begin: numpy's large ones do at 16.")]
Hosts = Annotated[str, typer.Option(
    "--hosts", metavar="HOST[:RANKS],...", show_default="this machine",
    help="Start the ranks on these hosts, filled in this order, by this MPI's mpiexec. They need "
    "Python and smcoll at the same paths.")]
HostFile = Annotated[Path | None, typer.Option(
    "--hostfile", metavar="FILE", help="The same from a file: a line HOST, HOST:RANKS or "
    "HOST slots=RANKS for each.")]
Yes = Annotated[bool, typer.Option(
    "-y", "--yes", help="Don't ask before more than 8 ranks a core, or half of the memory.")]
JSONFile = Annotated[Path | None, typer.Option("--json", metavar="FILE")]
CSVFile = Annotated[Path | None, typer.Option("--csv", metavar="FILE")]
PlotFile = Annotated[Path | None, typer.Option(
    "--plot", metavar="FILE", help="A figure (.png, .svg, .pdf); needs matplotlib.")]
