"""The levels above the node: switches, from a plain file that ``SMCOLL_NETWORK`` names.

One line for each host: its name and the switches above it, from the top down, as netloc's
coordinates give them (GJMM 4.2, without the last one, the port):

    # host  switches
    n0      core  edge0
    n1      core  edge0
    n2      core  edge1

A switch is known by its whole path: the ``edge0`` of another ``core`` is another switch. A torus
has no hierarchy (GJMM 3.4); its file begins with its dimensions, and a split is along one of them:

    torus 4 2
    n0  0 0
    n1  0 1
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from smcoll.topology.levels import Place

ENVIRONMENT = "SMCOLL_NETWORK"


@dataclass(frozen=True)
class Network:
    """``paths``: host -> switches from the top down, or coordinates.

    ``dimensions``: the torus's; empty for a tree.
    """

    paths: dict[str, tuple[str, ...]]
    dimensions: tuple[int, ...] = ()

    def places(self, host: str, torus_dimension: int | None = None) -> tuple[Place, ...]:
        """The levels above a host, from the top down. ValueError for hosts that are not there.

        A torus has one level, the coordinate in ``torus_dimension``; without that, none.
        """
        path = self.paths.get(host, self.paths.get(host.partition(".")[0]))
        if path is None:
            raise ValueError(f"{ENVIRONMENT}: no line for host {host!r}")
        if not self.dimensions:
            if torus_dimension is not None:
                raise ValueError(f"{ENVIRONMENT}: a torus dimension, but the network is no torus")
            return tuple(Place(f"Switch{depth}", "/".join(path[:depth + 1]))
                         for depth in range(len(path)))
        if torus_dimension is None:
            return ()
        if not 0 <= torus_dimension < len(self.dimensions):
            raise ValueError(f"{ENVIRONMENT}: no torus dimension {torus_dimension} (there are "
                             f"0 to {len(self.dimensions) - 1})")
        return (Place(f"TorusDimension{torus_dimension}", int(path[torus_dimension])),)


def parse(text: str) -> Network:
    """A file's content. ValueError when it is malformed."""
    paths: dict[str, tuple[str, ...]] = {}
    dimensions: tuple[int, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{ENVIRONMENT}, line {number}"
        host, *path = words
        if host == "torus":
            if paths or dimensions:
                raise ValueError(f"{where}: the torus must be the first line")
            if not path or not all(word.isdecimal() and int(word) > 0 for word in path):
                raise ValueError(f"{where}: a torus has sizes from 1, such as torus 4 4 2")
            dimensions = tuple(map(int, path))
            continue
        if host in paths:
            raise ValueError(f"{where}: host {host!r} a second time")
        if dimensions:
            _check_coordinates(where, path, dimensions)
        elif not path or any("/" in switch for switch in path):
            raise ValueError(f"{where}: a host's name and its switches, without slashes")
        paths[host] = tuple(path)
    if not paths:
        raise ValueError(f"{ENVIRONMENT}: the file names no host")
    if len({len(path) for path in paths.values()}) > 1:
        raise ValueError(f"{ENVIRONMENT}: hosts with different numbers of switches above them")
    return Network(paths, dimensions)


def _check_coordinates(where: str, path: list[str], dimensions: tuple[int, ...]) -> None:
    right = len(path) == len(dimensions) and all(
        word.isdecimal() and int(word) < size
        for word, size in zip(path, dimensions, strict=True))
    if not right:
        raise ValueError(f"{where}: {len(dimensions)} coordinates below "
                         f"{' '.join(map(str, dimensions))} are needed")


def read() -> Network | None:
    """The network that ``SMCOLL_NETWORK`` describes, or None. ValueError, OSError."""
    file = os.environ.get(ENVIRONMENT, "").strip()
    if not file:
        return None
    try:
        return parse(Path(file).read_text())
    except UnicodeDecodeError:
        raise ValueError(f"{ENVIRONMENT}: {file} is no text file") from None
