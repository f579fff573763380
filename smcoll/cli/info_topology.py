"""``smcoll info --topology``: the machine, the ranks on it, and their hardware communicators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

from smcoll.cli import output, page
from smcoll.cli.words import counted
from smcoll.launch import launch
from smcoll.topology import drawing


def show(ranks: int | None, json_file: Path | None, dot_file: Path | None,
         plot_file: Path | None) -> None:
    """Draw, and write the files that are asked for.

    Of this process alone; of a job of ``ranks`` ranks, started here; under mpiexec, of that job.
    """
    if ranks is not None:
        if launch.under_mpiexec():
            raise typer.BadParameter("this is a rank of a job already: leave -n out")
        tell(ranks)
        start_job(ranks, {"--json": json_file, "--dot": dot_file, "--plot": plot_file})
        return
    if not launch.under_mpiexec():
        tell(None)
    found = gather() if launch.under_mpiexec() else [own_rank(0)]
    memory = place_memory() if launch.under_mpiexec() else []
    problem = next((entry for entry in found if isinstance(entry, str)), None)
    if problem is not None:
        sys.stderr.write(f"smcoll: {problem}\n")
        raise typer.Exit(2)
    if not found:
        return                         # not rank 0 of a job
    # All parts at once, and to the end: mpiexec may cut what comes in pieces.
    sys.stdout.write(f"{drawing.text(found)}\n\ncommunicators by repeated split\n"
                     f"{drawing.communicators(found)}\n{memory_text(memory)}")
    if json_file is not None:
        output.write_json(json_file, {"ranks": drawing.facts(found), "memory": memory})
    if dot_file is not None:
        dot_file.write_text(drawing.dot(found))
    if plot_file is not None:
        drawing.plot(plot_file, found)


def own_rank(number: int) -> drawing.Rank | str:
    """This process, or what is wrong with the description of where it is."""
    try:
        return drawing.own_rank(number)
    except (ValueError, OSError) as error:
        return f"rank {number}: {error}"


def gather() -> list[drawing.Rank | str]:
    """All ranks of this job, on rank 0; nothing on the others."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return world.gather(own_rank(world.Get_rank())) or []


def place_memory() -> list[dict]:
    """Where each rank's part of a communicator's shared memory lies, on rank 0.

    All of it is made for that. Nothing where a job has one rank or no shared memory.
    """
    from mpi4py import MPI

    import smcoll

    world = MPI.COMM_WORLD
    try:
        with smcoll.Comm(world, smcoll.Config(eager=True)) as comm:
            engine = comm.engine
            if engine is None:
                return []
            domains = [rank for rank, members in enumerate(engine.domains.members)
                       for member in members if member == comm.Get_rank()]
            mine = {"rank": comm.Get_rank(), "domain": domains[0],
                    "pages_by_node": engine.pages_by_node()}
    except smcoll.TopologyError:
        return []                      # told by the drawing
    return world.gather(mine) or []


def memory_text(memory: list[dict]) -> str:
    """One line a rank."""
    lines = ["", "domains of collectives, and pages of each rank's shared memory by NUMA node"]
    for row in memory:
        pages = row["pages_by_node"]
        where = "unknown" if pages is None else ", ".join(
            f"{count} on node {node}" for node, count in pages.items())
        lines.append(f"  rank {row['rank']}: domain {row['domain']}; {where}")
    return "\n".join(lines) + "\n" if memory else ""


def tell(ranks: int | None) -> None:
    """The first line."""
    page.announce(page.page_console(), "Drawing this machine and "
                  + ("this process" if ranks is None else counted(ranks, "rank")),
                  1 if ranks is None else page.SECONDS_A_JOB)


def start_job(ranks: int, files: dict[str, Path | None]) -> None:
    """A job of ranks that draw themselves; its exit code is ours."""
    options = [str(word) for name, file in files.items() if file is not None
               for word in (name, file)]
    result = launch.run(ranks, launch.own_command("info", "--topology", *options),
                        capture_output=True, text=True, stdin=subprocess.DEVNULL)
    sys.stdout.write(result.stdout)
    if result.returncode != 0:
        sys.stderr.write(result.stderr)
        raise typer.Exit(2)
