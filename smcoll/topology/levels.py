"""Levels, groups and distances, computed from where all ranks are. No MPI.

A rank's *location* is the path of hardware objects that contain all CPUs it may run on, from the
top of the network down to the deepest object (GJMM 3.2.4: a rank bound to an L3 cache has no place
below it). Everything else follows from the locations of a communicator's ranks, so each rank
computes it alone and all agree; and so the same functions serve ranks that are only imagined.

Lists of locations are in the order of the ranks. Ranks in and out are positions in that list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smcoll.topology.hardware import TYPES, HardwareObject
from smcoll.topology.synthetic import ALIASES

UNKNOWN = "Unknown"
CLUSTER = "System - Cluster"


@dataclass(frozen=True)
class Place:
    """One object of a location.

    ``index`` tells it from others of its ``type``: on one machine a number, for machines and
    switches a name. ``height``: see HardwareObject; None above the node.
    """

    type: str
    index: int | str
    height: int | None = None


Location = tuple[Place, ...]


@dataclass(frozen=True)
class LevelInfo:
    """What a communicator stands for (GJMM 3.3.1).

    ``type``: the resource that its ranks share. ``index``: its number, from 0 without gaps, among
    the communicators that the same split of the same parent made. ``siblings``: how many those are,
    itself among them (MPI_Comm_get_hlevel_info's num_comms).
    """

    type: str
    index: int
    siblings: int


@dataclass(frozen=True)
class Group:
    """The ranks of a communicator that a split makes, ascending, and what it stands for."""

    members: tuple[int, ...]
    info: LevelInfo


# ---------------------------------------------------------------------- locations


def locate(machine: HardwareObject, cpus: frozenset[int], identity: str) -> Location:
    """The places on a machine of a process that may run on ``cpus``, from the machine down.

    ``identity``: tells this machine from others. ValueError if ``cpus`` isn't in the machine, or
    empty.
    """
    if not cpus or not cpus <= machine.cpus:
        raise ValueError("a binding outside the machine")
    places = [Place(machine.type, identity, machine.height)]
    inner: HardwareObject | None = machine
    while (inner := next((c for c in inner.children if cpus <= c.cpus), None)) is not None:
        places.append(Place(inner.type, inner.index, inner.height))
    return tuple(places)


def shared(locations: Iterable[Location]) -> Location:
    """The places that all locations have in common: the path to the deepest object they share."""
    common: list[Place] = []
    for places in zip(*locations, strict=False):
        if any((p.type, p.index) != (places[0].type, places[0].index) for p in places):
            break
        common.append(places[0])
    return tuple(common)


def name(path: Location) -> str:
    """The type of the deepest object of a path.

    A PU that is its core's only one counts as the core (GJMM 5.1, step 4), and a NUMA node that is
    the whole machine as the machine (hwloc before 2.0, as in GJMM, had no such object).
    """
    if not path:
        return CLUSTER
    last = path[-1]
    preferred = {"PU": "Core", "NUMANode": "Machine"}.get(last.type)
    redundant = any(p.type == preferred and p.height == last.height for p in path)
    return preferred if preferred and redundant else last.type


def level_name(text: str) -> str:
    """The level that ``text`` names, as hwloc and this module write it.

    ValueError for an unknown one, TypeError for what is no text.
    Upper and lower case are the same; ``numa``, ``L3``, ``L3_Cache`` and ``hwloc://L3Cache`` are
    understood, too, and MPI's ``mpi_shared_memory`` for the node.
    """
    if not isinstance(text, str):
        raise TypeError(f"a level's name is a string, not {text!r}")
    plain = text.strip().removeprefix("hwloc://").replace("_", "").replace(" ", "").lower()
    if plain in ALIASES:
        return "Group0" if ALIASES[plain] == "Group" else ALIASES[plain]
    if plain in ("machine", "mpisharedmemory"):
        return "Machine"
    numbered = re.fullmatch(r"(switch|torusdimension|group)(\d+)", plain)
    if numbered is not None:
        return {"switch": "Switch", "torusdimension": "TorusDimension",
                "group": "Group"}[numbered[1]] + str(int(numbered[2]))
    known = [kind for kind in TYPES if kind != "Group"]
    raise ValueError(f"unknown level {text!r} (there are {', '.join(known)}, Group0, Switch0, "
                     "TorusDimension0 and so on)")


# ---------------------------------------------------------------------- splits


def split(locations: Sequence[Location]) -> list[Group | None]:
    """The next level below (GJMM Algorithm 1): for each rank its group, or None.

    The groups are the children of the deepest object that contains all ranks; a rank bound to no
    single child has none. Each is a strict subset, or all are None: at the bottom. A group's type
    is the deepest object that contains its ranks, so of redundant levels the lowest (3.2.2).
    """
    depth = len(shared(locations))
    return _groups(locations, [path[depth:depth + 1] for path in locations], None)


def split_to(locations: Sequence[Location], level: str) -> list[Group | None]:
    """One group for each object of a level (3.4), for ranks that are bound to a single one.

    ``level``: as ``level_name`` gives it. Here a group may have all ranks.
    """
    paths = []
    for path in locations:
        depth = next((d for d, place in enumerate(path) if place.type == level), None)
        paths.append(() if depth is None else path[:depth + 1])
    return _groups(locations, paths, level)


def _groups(locations: Sequence[Location], keys: Sequence[Location],
            kind: str | None) -> list[Group | None]:
    """Ranks with the same key are a group, without key in none."""
    members: dict[tuple, list[int]] = {}
    for rank, key in enumerate(keys):
        if key:
            members.setdefault(tuple((p.type, p.index) for p in key), []).append(rank)
    result: list[Group | None] = [None] * len(locations)
    for index, key in enumerate(_in_order(members)):
        ranks = tuple(members[key])
        info = LevelInfo(kind or name(shared(locations[rank] for rank in ranks)),
                         index, len(members))
        for rank in ranks:
            result[rank] = Group(ranks, info)
    return result


def _in_order(members: dict[tuple, list[int]]) -> list[tuple]:
    """The keys: objects of a machine in hardware order, machines and switches by first rank."""
    first: dict[tuple, int] = {}
    for key, ranks in members.items():
        for depth in range(1, len(key) + 1):
            first[key[:depth]] = min(first.get(key[:depth], ranks[0]), ranks[0])
    return sorted(members, key=lambda key: [
        first[key[:depth]] if isinstance(index, str) else index
        for depth, (_, index) in enumerate(key, 1)])


def roots(groups: Iterable[Group | None]) -> tuple[int, ...]:
    """The ranks of the roots communicator: the lowest one of each group (GJMM 3.2.3)."""
    return tuple(sorted({group.members[0] for group in groups if group is not None}))


def hierarchy(locations: Sequence[Location]) -> list[list[Group]]:
    """All levels at once: for each rank its groups, from the top down, until there is none.

    Members are positions in ``locations`` on all levels.
    """
    result: list[list[Group]] = [[] for _ in locations]

    def descend(ranks: tuple[int, ...]) -> None:
        groups = split([locations[rank] for rank in ranks])
        for group in dict.fromkeys(group for group in groups if group is not None):
            below = Group(tuple(ranks[member] for member in group.members), group.info)
            for rank in below.members:
                result[rank].append(below)
            descend(below.members)

    descend(tuple(range(len(locations))))
    return result


# ---------------------------------------------------------------------- questions


def min_level(locations: Sequence[Location], ranks: Sequence[int], caller: int) -> str:
    """The lowest level that ``ranks`` share (GJMM 3.3.2, 4.1.4).

    "Unknown" if ``caller`` isn't one of them; "System - Cluster" if they are on several nodes that
    no known switch joins. ValueError for ranks that don't exist.
    """
    check_ranks(ranks, len(locations))
    if caller not in ranks:
        return UNKNOWN
    return name(shared(locations[rank] for rank in ranks))


def check_ranks(ranks: Iterable[int], size: int) -> None:
    """ValueError unless all ranks are in a communicator of ``size`` ranks."""
    wrong = [rank for rank in ranks if not 0 <= rank < size]
    if wrong:
        raise ValueError(f"ranks {wrong} are not in a communicator of {size} ranks")


def distances(locations: Sequence[Location]) -> list[list[int]]:
    """How many levels up two ranks meet, for all pairs: a symmetric matrix.

    0 only for a rank and itself; 1 for ranks that share the smallest part of the machine; one more
    for each level with more CPUs, the node, and each switch level above it. Where a rank may move
    about in a part of the machine, it is as far away as the farthest place there. It is an
    ultrametric: d(a, c) <= max(d(a, b), d(b, c)).
    """
    highest = _highest(locations)
    ranks = range(len(locations))
    return [[_distance(locations, first, second, highest) for second in ranks] for first in ranks]


def distance(locations: Sequence[Location], first: int, second: int) -> int:
    """One number of ``distances``. ValueError for ranks that don't exist."""
    check_ranks((first, second), len(locations))
    return _distance(locations, first, second, _highest(locations))


def _highest(locations: Sequence[Location]) -> int:
    """The distance of ranks that share nothing."""
    machine = max((p.height or 0 for path in locations for p in path), default=0)
    network = max((sum(p.height is None for p in path) for path in locations), default=0)
    return 2 + machine + network


def _distance(locations: Sequence[Location], first: int, second: int, highest: int) -> int:
    if first == second:
        return 0
    path = shared((locations[first], locations[second]))
    if path and path[-1].height is not None:
        return 1 + path[-1].height
    return highest - len(path)
