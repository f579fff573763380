"""Hierarchies of communicators: hand-made ones from a file, and those of the hardware.

A hierarchy is what each rank has of it: a list of communicators from the top down. In the lowest
one are neighbours; in each one above, the ranks 0 of those below; COMM_NULL where a rank isn't
among these. (The root-based communicators of Goglin et al. 2018, section 3.2.3.)
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the process that starts the ranks must not load MPI
    from mpi4py import MPI

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_FILE = Path(__file__).with_name("groupings.toml")
HARDWARE = "hardware"
SIMPLE = "simple"

# Levels of a made-up machine, the outermost first, in the names of hwloc.
_LEVELS = ("package", "numa", "l3", "l2", "core")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which hierarchies."""
    parser.add_argument("--config", type=Path, default=DEFAULT_FILE, metavar="FILE",
                        help="hand-made groupings (TOML; groupings.toml beside the program)")
    parser.add_argument("--groupings", default="", metavar="NAME,...",
                        help="some of the variants (all)")
    parser.add_argument("--topology", default="", metavar="DESCRIPTION",
                        help='a made-up machine such as "package:2 core:2", rank i on CPU i (this '
                        "machine where it has at least 2 levels, else one that fits the ranks)")


# ---------------------------------------------------------------------- hand-made


def read(file: Path, application: str, ranks: int) -> dict[str, list[int]]:
    """Name -> sizes, from the top down, of an application's groupings of so many ranks.

    ValueError: the file can't be read, or a grouping doesn't give that many ranks.
    """
    try:
        content = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"--config {file}: {error}") from None
    tables = content.get(application, {})
    table = tables.get(str(ranks), {}) if isinstance(tables, dict) else None
    if not isinstance(table, dict):
        raise ValueError(f"--config {file}: [{application}.{ranks}] is no table of groupings")
    for name, sizes in table.items():
        if (not isinstance(sizes, list) or not sizes
                or not all(type(size) is int and size >= 1 for size in sizes)
                or math.prod(sizes) != ranks):
            raise ValueError(f"--config {file}: [{application}.{ranks}] {name} = {sizes}: a list "
                             f"of sizes with product {ranks} is needed")
    return table


def chosen(arguments: argparse.Namespace, known: list[str]) -> list[str]:
    """The variants to run; ValueError for names that nobody knows."""
    names = [name.strip() for name in arguments.groupings.split(",") if name.strip()] or known
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"--groupings: {', '.join(unknown)} (there are {', '.join(known)})")
    return list(dict.fromkeys(names))


def by_sizes(comm: MPI.Intracomm, sizes: list[int], position: int) -> list[MPI.Intracomm]:
    """A hand-made hierarchy: neighbouring positions together. Collective.

    ``position``: this rank's, 0 to ``comm.size - 1``; the roots are those with the lowest ranks in
    ``comm``, wherever these are.
    """
    from mpi4py import MPI

    levels, current = [], comm
    width = math.prod(sizes)
    for size in sizes[:-1]:
        width //= size
        inner = current.Split(position // width)
        levels.append(current.Split(0 if inner.Get_rank() == 0 else MPI.UNDEFINED))
        current = _free_all_but(comm, current, inner)
    return [*levels, current]


def _free_all_but(kept: MPI.Intracomm, comm: MPI.Intracomm,
                  following: MPI.Intracomm) -> MPI.Intracomm:
    """``following``; ``comm`` has served."""
    if comm is not kept:
        comm.Free()
    return following


# ---------------------------------------------------------------------- of the hardware


def by_hardware(comm: MPI.Intracomm) -> list[MPI.Intracomm]:
    """The hierarchy of the hardware levels that tell ranks of ``comm`` apart. Collective.

    ValueError where some ranks are bound to a single object of a level and others aren't.
    """
    from mpi4py import MPI

    from smcoll import topology

    levels, current = [], comm
    while True:
        inner, roots = topology.split_with_roots(current)
        sizes = MPI.Intracomm.allgather(current, inner.Get_size() if inner else 0)
        if max(sizes) <= 1:  # each rank has its own object, or nothing is below
            for unused in (inner, roots):
                if unused:
                    unused.Free()
            return [*levels, current]
        if min(sizes) == 0:
            left_out = [rank for rank, size in enumerate(sizes) if size == 0]
            raise ValueError(f"ranks {left_out} of {len(sizes)} are bound to no single object of "
                             "the next hardware level, others are: bind all alike, or give "
                             "--topology")
        levels.append(roots)
        current = _free_all_but(comm, current, inner)


def prepare_hardware(world: MPI.Intracomm, description: str) -> str:
    """Choose the machine whose levels are used; a text that names it and them. Collective.

    This one where ranks have at least 2 levels on it, else a made-up one. ValueError when the
    machine asked for has fewer.
    """
    machine = os.environ.get("SMCOLL_TOPOLOGY") or "this machine"
    if description:
        machine = _make_up(description, world.Get_size())
    levels = _describe(world)
    if len(levels) < 2 and not description and "SMCOLL_TOPOLOGY" not in os.environ:
        machine = _make_up(fitting(world.Get_size()), world.Get_size())
        levels = _describe(world)
    if len(levels) < 2:
        raise ValueError(f"{machine} has {len(levels)} level of {world.Get_size()} ranks, at least "
                         "2 are needed: give another --topology")
    return f"{machine}: {', '.join(levels)}"


def _make_up(description: str, ranks: int) -> str:
    os.environ["SMCOLL_TOPOLOGY"] = description
    os.environ["SMCOLL_BINDING"] = " ".join(map(str, range(ranks)))
    return f"made-up machine {description!r}"


def fitting(ranks: int) -> str:
    """The description of a machine with one core for each rank and as many levels as possible."""
    factors, rest = [], ranks
    for factor in range(2, ranks + 1):
        while rest % factor == 0:
            factors.append(factor)
            rest //= factor
    names = [*_LEVELS[:max(len(factors), 1) - 1][:len(_LEVELS) - 1], "core"]
    # More factors than names: the last ones together.
    counts = [*factors[:len(names) - 1], math.prod(factors[len(names) - 1:])]
    return " ".join(f"{name}:{count}" for name, count in zip(names, counts, strict=True))


def _describe(world: MPI.Intracomm) -> list[str]:
    """Of each level: how many ranks rank 0's communicator has. ValueError on all ranks."""
    from smcoll.errors import Error

    levels, problem = [], ""
    try:
        levels = by_hardware(world)
    except (ValueError, Error) as error:  # Error: a malformed description
        problem = str(error)
    problems = [text for text in world.allgather(problem) if text]
    if problems:
        raise ValueError(problems[0])
    sizes = world.bcast([comm.Get_size() for comm in levels if comm])
    for comm in levels:
        if comm and comm is not world:
            comm.Free()
    return [f"level {number} of {size} ranks" for number, size in enumerate(sizes, 1)]


def members(world: MPI.Intracomm, levels: list[MPI.Intracomm]) -> list[list[tuple[int, ...]]]:
    """Each rank's communicators as tuples of ranks of ``world``; () for COMM_NULL. Collective."""
    mine = []
    for comm in levels:
        everyone = range(comm.Get_size()) if comm else ()
        mine.append(tuple(comm.group.Translate_ranks(list(everyone), world.group)) if comm else ())
    return world.allgather(mine)
