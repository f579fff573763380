"""Hosts that ranks are to start on: read from an option or a file, and how launchers are told.

Ranks fill the hosts in their order. Every launcher is told exactly how many each of them gets, so
the placement does not depend on whose mpiexec it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# What ranks on other hosts need of the environment, where a launcher does not carry all of it.
_CARRIED = re.compile(
    r"SMCOLL_.*|PYTHON.*|MPI4PY_.*|LD_LIBRARY_PATH|(OMP|OPENBLAS|MKL)_NUM_THREADS")
# ``name``, ``name:4`` (Hydra's) or ``name slots=4`` (Open MPI's), and further settings.
_LINE = re.compile(r"([^\s:=,]+)(?::(\d+))?((?:\s+\w+=\S+)*)")


@dataclass(frozen=True)
class Host:
    """A host, and how many ranks it takes (None: an even share)."""

    name: str
    ranks: int | None = None

    def __str__(self) -> str:
        return self.name if self.ranks is None else f"{self.name}:{self.ranks}"


def parse(text: str) -> list[Host]:
    """``h1:4,h2:4`` or ``h1,h2``. ValueError for anything else."""
    return _checked([_host(part.strip()) for part in text.split(",") if part.strip()], text)


def read(file: Path) -> list[Host]:
    """A line for each host, as Open MPI and Hydra have it: ``name``, ``name:4``, ``name slots=4``.

    What stands behind ``#`` is left out. ValueError: no such file, or not such lines.
    """
    try:
        lines = [line.partition("#")[0].strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: {error}") from None
    return _checked([_host(line) for line in lines if line], str(file))


def _host(text: str) -> Host:
    match = _LINE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no host, such as h1 or h1:4")
    slots = re.search(r"\bslots=(\d+)", match[3])
    number = match[2] or (slots and slots[1])
    return Host(match[1], int(number) if number else None)


def _checked(hosts: list[Host], source: str) -> list[Host]:
    if not hosts:
        raise ValueError(f"{source}: no host is named")
    if len({host.ranks is None for host in hosts}) > 1:
        raise ValueError(f"{source}: either all hosts have a number of ranks or none has")
    if any(host.ranks == 0 for host in hosts):
        raise ValueError(f"{source}: a host for 0 ranks")
    return hosts


def room(hosts: Sequence[Host]) -> int | None:
    """How many ranks they take in all; None: any number."""
    counts = [host.ranks for host in hosts if host.ranks is not None]
    return sum(counts) if counts else None


def share(hosts: Sequence[Host], ranks: int) -> list[tuple[str, int]]:
    """(name, ranks) of each host that gets some. ValueError where they take fewer ranks.

    Hosts with numbers are filled one after the other; those without get as many each, the first
    ones one more.
    """
    limit = room(hosts)
    if limit is not None and ranks > limit:
        raise ValueError(f"{ranks} ranks: the hosts take {limit}")
    shares: list[tuple[str, int]] = []
    left = ranks
    for number, host in enumerate(hosts):
        others = len(hosts) - number
        count = -(-left // others) if host.ranks is None else min(host.ranks, left)
        left -= count
        if count:
            shares.append((host.name, count))
    return shares


def carried(environment: Mapping[str, str], also: Iterable[str] = ()) -> list[str]:
    """Names of the variables that ranks on other hosts need, ``also`` among them."""
    return sorted({*(name for name in environment if _CARRIED.fullmatch(name)), *also})
