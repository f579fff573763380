"""``smcoll run``: a program, unchanged, with its collectives through shared memory."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from typing import Annotated

import typer

from smcoll import config
from smcoll.cli import guard, options, selection
from smcoll.cli.run_program import ProgramToRun
from smcoll.launch import launch

# The kernel takes arguments of up to 128 KiB.
LONGEST_INPUT = 100_000


def run_command(
    program: Annotated[list[str], typer.Argument(
        metavar="PROGRAM [ARGUMENTS]...", show_default=False,
        help="A Python file, - for standard input; what follows is its own.")],
    module: Annotated[bool, typer.Option(
        "-m", "--module", metavar=options.FLAG, show_default=False,
        rich_help_panel=options.PROGRAM, help="PROGRAM is a module, as with `python -m`.",
        )] = False,
    code: Annotated[bool, typer.Option(
        "-c", "--code", metavar=options.FLAG, show_default=False,
        rich_help_panel=options.PROGRAM, help="PROGRAM is code, as with `python -c`.")] = False,
    heap: Annotated[bool, typer.Option(
        "--heap", metavar=options.FLAG, show_default=False, rich_help_panel=options.PROGRAM,
        help="numpy's larger arrays into shared heaps (SMCOLL_HEAP=1).")] = False,
    libraries: Annotated[bool, typer.Option(
        "--libraries", metavar=options.FLAG, show_default=False, rich_help_panel=options.PROGRAM,
        help="Collectives that C libraries call, too (SMCOLL_LIBRARIES=1).")] = False,
    ranks: Annotated[int | None, typer.Option(
        "-n", "-np", "--ranks", min=1, metavar="N", show_default=False,
        rich_help_panel=options.RANKS,
        help="Start so many; without it run in this process, a rank or not.")] = None,
    hosts: options.Hosts = "",
    host_file: options.HostFile = None,
    layout: options.Layout = None,
    mpi_option: Annotated[list[str] | None, typer.Option(
        "--mpi-option", metavar="WORD", rich_help_panel=options.RANKS,
        help="One more word for mpiexec; repeat it.")] = None,
    yes: options.Yes = False,
) -> None:
    """Run a program with MPI.COMM_WORLD's collectives in shared memory.

    An uncaught exception on one rank ends the whole job, as with
    `python -m mpi4py`.
    """
    if module and code:
        raise typer.BadParameter("either -m or -c")
    kind = ("module" if module else "code" if code else "input" if program[0] == "-" else "file")
    if heap:
        # Ranks started from here inherit it.
        os.environ["SMCOLL_HEAP"] = "1"
    if libraries:
        os.environ["SMCOLL_LIBRARIES"] = "1"
    on = selection.hosts(hosts, host_file)
    if on and ranks is None:
        ranks, = selection.rank_counts("", on)
    if ranks is None:
        if layout or mpi_option:
            raise typer.BadParameter("--layout and --mpi-option need -n: they are for the mpiexec "
                                     "that smcoll starts")
        look_for(kind, program[0])
        mention_ranks_behind(program)
        raise ProgramToRun(program, kind)
    if launch.under_mpiexec():
        raise typer.BadParameter("this is a rank of a job already: leave -n and --hosts out")
    try:
        config.Config()
    except ValueError as error:         # once, and not on each rank
        sys.stderr.write(f"smcoll: {error}\n")
        raise typer.Exit(2) from None
    guard.check_ranks([ranks], on, yes)
    if not on:                          # they may have what this machine lacks
        look_for(kind, program[0])
    if kind == "input":
        # mpiexec gives standard input to one rank only.
        program = [sys.stdin.read(), *program[1:]]
        if len(program[0].encode()) > LONGEST_INPUT:
            raise typer.BadParameter(f"a program of more than {LONGEST_INPUT} bytes on standard "
                                     "input: put it into a file")
    argv = launch.own_command("run-rank", kind, *program)
    result = launch.run(ranks, argv, extra_options=mpi_option or (), layout=layout, hosts=on)
    raise typer.Exit(exit_code(result.returncode))


def look_for(kind: str, program: str) -> None:
    """End, as Python does, where the program is not there: once, and not on each rank."""
    if kind == "file" and not os.path.exists(program):
        sys.stderr.write(f"smcoll: can't open file {program!r}: No such file or directory\n")
        raise typer.Exit(2)
    if (kind == "file" and os.path.isdir(program)
            and not os.path.exists(os.path.join(program, "__main__.py"))):
        sys.stderr.write(f"smcoll: can't find '__main__' module in {program!r}\n")
        raise typer.Exit(1)
    if kind == "module":
        # The package alone: looking for what is in it would import it.
        package = program.partition(".")[0]
        sys.path.insert(0, os.getcwd())
        try:
            missing = importlib.util.find_spec(package) is None
        except ValueError:              # loaded already, in an unusual way
            missing = False
        finally:
            del sys.path[0]
        if missing:
            sys.stderr.write(f"smcoll: No module named {package}\n")
            raise typer.Exit(1)


def mention_ranks_behind(program: list[str]) -> None:
    """Where somebody may have meant to start several ranks."""
    for option, number in itertools.pairwise(program[1:]):
        if option in ("-n", "-np", "--ranks") and number.isdigit() and not launch.under_mpiexec():
            sys.stderr.write(f"smcoll: one process, since {option} {number} behind the program is "
                             f"the program's own (ranks: smcoll run -n {number} {program[0]})\n")


def exit_code(returncode: int) -> int:
    """A shell's number for how a process ended."""
    return returncode if returncode >= 0 else 128 - returncode
