"""``smcoll run``: a program, unchanged, with its collectives through shared memory."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from smcoll.cli import options, selection
from smcoll.launch import launch

# (program and arguments, whether it is a module): what to run in this process.
postponed: tuple[list[str], bool] | None = None


def run_command(
    program: Annotated[list[str], typer.Argument(
        metavar="PROGRAM [ARGUMENTS]...", help="Python file (or, with -m, module), and what "
        "belongs to it.", show_default=False)],
    ranks: Annotated[int | None, typer.Option(
        "-n", "--ranks", min=1, show_default=False,
        help="Start this many ranks. Without it: run in this process, which mpiexec, srun or "
        "nobody started as a rank.")] = None,
    module: Annotated[bool, typer.Option(
        "-m", "--module", help="PROGRAM is the name of a module, as with `python -m`.")] = False,
    heap: Annotated[bool, typer.Option(
        "--heap", help="Put numpy's larger arrays into shared heaps, where other ranks read and "
        "write them directly (SMCOLL_HEAP=1).")] = False,
    hosts: options.Hosts = "",
    host_file: options.HostFile = None,
    layout: Annotated[str | None, typer.Option(
        help="Bind ranks to CPUs: compact, spread, or a list such as 0,2,4-7.")] = None,
    mpi_option: Annotated[list[str] | None, typer.Option(
        "--mpi-option", help="One more word for mpiexec; repeat it for more.")] = None,
) -> None:
    """Run a program with MPI.COMM_WORLD's collectives through shared memory.

    An uncaught exception on one rank ends the whole job, as `python -m mpi4py` does.
    """
    global postponed
    if heap:
        # Ranks started from here inherit it.
        os.environ["SMCOLL_HEAP"] = "1"
    on = selection.hosts(hosts, host_file)
    if on and ranks is None:
        ranks, = selection.rank_counts("", on)
    if ranks is None:
        if layout or mpi_option:
            raise typer.BadParameter("--layout and --mpi-option need -n: they are for the mpiexec "
                                     "that smcoll starts")
        postponed = (program, module)
        return
    if launch.under_mpiexec():
        raise typer.BadParameter("this is a rank of a job already: leave -n and --hosts out")
    argv = launch.own_command("run-rank", "module" if module else "file", *program)
    result = launch.run(ranks, argv, extra_options=mpi_option or (), layout=layout, hosts=on)
    raise typer.Exit(exit_code(result.returncode))


def exit_code(returncode: int) -> int:
    """A shell's number for how a process ended."""
    return returncode if returncode >= 0 else 128 - returncode
