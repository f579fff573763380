"""Options that several measuring commands share, checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from smcoll import config
from smcoll.algorithms import ALGORITHMS
from smcoll.bench import lower_bound
from smcoll.launch import hosts as named_hosts
from smcoll.launch import launch
from smcoll.launch.hosts import Host
from smcoll.topology import node

if TYPE_CHECKING:
    import numpy as np

# As ``bench.workloads`` has them; importing that would initialise MPI in the command's process.
COLLECTIVES = (
    "barrier", "bcast", "reduce", "allreduce", "gather", "gatherv", "scatter", "scatterv",
    "allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw", "reduce_scatter",
    "reduce_scatter_block", "scan", "exscan")
THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")
# One thread for each rank: libraries' own threads would compete with the ranks.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def names(text: str) -> list[str]:
    """``a,b`` -> its words."""
    return [name.strip() for name in text.split(",") if name.strip()]


def collectives(text: str) -> list[str]:
    """``bcast,reduce`` or ``all``."""
    return known_names("--collectives", text, COLLECTIVES)


def known_names(option: str, text: str, known: Sequence[str]) -> list[str]:
    """Names, all of which are known; ``all``: every one."""
    chosen = [name.lower() for name in names(text)]
    if chosen == ["all"]:
        return list(known)
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        raise typer.BadParameter(f"{option}: {', '.join(unknown) or 'none'} "
                                 f"(there are {', '.join(known)}, or all)")
    return chosen


def algorithms(text: str, chosen: Sequence[str]) -> list[str]:
    """Names of algorithms, each of which at least one of the chosen collectives has."""
    wanted = names(text)
    known = sorted({name for collective in chosen for name in ALGORITHMS.get(collective, ())})
    for name in wanted:
        if name not in known and name != "auto":
            raise typer.BadParameter(f"--algorithms: {name} (there are auto, {', '.join(known)})")
    return wanted


def bytes_list(option: str, text: str) -> list[int]:
    """``4K,128K`` -> bytes."""
    try:
        return [config.parse_bytes(part) for part in names(text)]
    except ValueError as error:
        raise typer.BadParameter(f"{option} {text}: {error}") from None


def element_type(name: str) -> np.dtype:
    """A numpy name of a floating-point or integer type that MPI can add."""
    import numpy as np  # 0.1 s that `smcoll run` does not need

    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "fiu" or dtype.itemsize not in (1, 2, 4, 8) or name == "float16":
        raise typer.BadParameter(f"-T {name}: a type such as float64, float32, int32 or int8")
    return dtype


def sizes(text: str, factor: int, listed: str = "", element: int = 8) -> list[int]:
    """``MIN:MAX`` or ``MAX`` in bytes (K and M for 1024 and 1024 squared) -> sizes.

    ``listed``: the sizes themselves, instead.
    """
    if listed:
        chosen = bytes_list("--sizes", listed)
        if any(nbytes < element or nbytes % element for nbytes in chosen):
            raise typer.BadParameter(f"--sizes {listed}: multiples of {element} bytes (one "
                                     "element)")
        return chosen
    low, _, high = text.rpartition(":")
    try:
        first, last = config.parse_bytes(low or "8"), config.parse_bytes(high)
    except ValueError as error:
        raise typer.BadParameter(f"-m {text}: {error}") from None
    if not element <= first <= last or first % element or last % element:
        raise typer.BadParameter(f"-m {text}: sizes are multiples of {element} bytes (one "
                                 "element), the smaller first")
    chosen = []
    while first < last:
        chosen.append(first)
        first *= factor
    return [*chosen, last]


def limits(file: Path) -> dict:
    """The machine's limits that ``bench/limits.py`` wrote."""
    try:
        return lower_bound.read(file)
    except ValueError as error:
        raise typer.BadParameter(f"--limits: {error}") from None


def hosts(text: str, file: Path | None) -> list[Host]:
    """``h1:4,h2:4``, or a hostfile; none: this machine."""
    if text and file is not None:
        raise typer.BadParameter("either --hosts or --hostfile")
    try:
        return named_hosts.read(file) if file else named_hosts.parse(text) if text else []
    except ValueError as error:
        raise typer.BadParameter(f"{'--hostfile' if file else '--hosts'} {error}") from None


def rank_counts(text: str, on: Sequence[Host] = ()) -> list[int]:
    """``2,4,8`` -> rank counts; nothing: as many as the hosts take, or one for each core."""
    room = named_hosts.room(on)
    if not text:
        if on and room is None:
            raise typer.BadParameter("-n is needed, or a number of ranks for each host: h1:4,h2:4")
        return [room or max(2, len(launch.cores(node.allowed_cpus())))]
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise typer.BadParameter(f"-n {text}: numbers of ranks such as 2,4,8")
    if room is not None and max(counts) > room:
        raise typer.BadParameter(f"-n {text}: the hosts take {room} ranks")
    return counts


def radices(option: str, text: str) -> list[int]:
    """``2,4,8`` -> numbers of children."""
    return numbers_of("children", option, text, config.RADIX_LIMIT)


def numbers_of(what: str, option: str, text: str, limit: int) -> list[int]:
    """``2,4,8`` -> numbers of something, from 1 to ``limit``."""
    chosen = [int(part) if part.isdigit() else 0 for part in names(text)]
    if not chosen or min(chosen) < 1 or max(chosen) > limit:
        raise typer.BadParameter(f"{option} {text}: numbers of {what} between 1 and {limit}, such "
                                 "as 2,4,8")
    return chosen


def arities(option: str, text: str) -> list[int]:
    """``2,4,8`` -> the n of n-ary trees."""
    chosen = radices(option, text)
    if min(chosen) < 2:
        raise typer.BadParameter(f"{option} {text}: an n-ary tree has n of at least 2")
    return chosen


def root(text: str) -> int:
    """``rotate`` -> -1, or a rank."""
    if text == "rotate":
        return -1
    if not text.isdigit():
        raise typer.BadParameter(f"-k {text}: a rank, or rotate")
    return int(text)


def thread_level(name: str) -> str:
    """One of MPI's."""
    if name not in THREAD_LEVELS:
        raise typer.BadParameter(f"--thread-level is one of {', '.join(THREAD_LEVELS)}")
    return name
