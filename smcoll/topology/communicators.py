"""The public functions: hardware levels of mpi4py's and smcoll's communicators.

Every function is collective over the communicator, except ``level_info``; each gathers anew where
the ranks are, so bindings may change in between. What one rank finds wrong is raised on all ranks,
as TopologyError. New communicators come from ``comm.Split``, so those of a smcoll communicator are
smcoll's, with its settings. All functions need an intra-communicator.

``levels`` selects a part of the hierarchy (GJMM 3.4): ``"all"``; ``"network"``, the switches and
the nodes; ``"node"``, the nodes and what is inside. ``torus_dimension`` is the dimension of a torus
along which to split (see ``network``); without it the nodes of a torus have no level above them.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpi4py import MPI

from smcoll.errors import TopologyError
from smcoll.mpi.agreement import gather
from smcoll.topology import binding
from smcoll.topology import levels as computation
from smcoll.topology.levels import Group, LevelInfo, Location, Place
from smcoll.topology.location import Selection

# MPI 4's key, and ours.
TYPE_KEY = "mpi_hw_resource_type"
LEVELS_KEY = "smcoll_hw_levels"
TORUS_KEY = "smcoll_torus_dimension"

# Of what is gathered, in characters of JSON.
_LONGEST_PROBLEM = 1000
_LONGEST_LOCATION = 3000


# ---------------------------------------------------------------------- the public functions


def split(comm: MPI.Intracomm, *, levels: str = "all",
          torus_dimension: int | None = None) -> MPI.Intracomm:
    """The communicator of the next hardware level below ``comm`` (GJMM 3.2, Algorithm 1).

    A strict subset of ``comm``, with its order of ranks: the ranks inside the same child of the
    deepest hardware object that contains all ranks of ``comm``. COMM_NULL for a rank that is not
    bound to a single child, and for all ranks at the bottom.
    """
    chosen = _everyone(comm, lambda: Selection(levels, torus_dimension))
    return _make(comm, computation.split(chosen.locations))


def split_with_roots(comm: MPI.Intracomm, *, levels: str = "all",
                     torus_dimension: int | None = None) -> tuple[MPI.Intracomm, MPI.Intracomm]:
    """``split``, and the communicator of the new communicators' roots (GJMM 3.2.3, Algorithm 2).

    Roots are the ranks 0 of the new communicators; all other ranks have COMM_NULL there. The order
    is that of ``comm``.
    """
    chosen = _everyone(comm, lambda: Selection(levels, torus_dimension))
    groups = computation.split(chosen.locations)
    return _make(comm, groups), _make_roots(comm, groups)


def split_to(comm: MPI.Intracomm, level: str, *, levels: str = "all",
             torus_dimension: int | None = None) -> MPI.Intracomm:
    """One communicator for each object of a named level, without those between (GJMM 3.4).

    ``level``: as in ``levels.level_name``, the same on all ranks. COMM_NULL for ranks that are not
    bound to a single one, and where there is no such level. Not always a strict subset.
    """
    def request() -> tuple[Selection, str]:
        return Selection(levels, torus_dimension), computation.level_name(level)

    chosen = _everyone(comm, request)
    return _make(comm, computation.split_to(chosen.locations, chosen.level))


def hierarchy(comm: MPI.Intracomm, *, levels: str = "all",
              torus_dimension: int | None = None) -> list[MPI.Intracomm]:
    """All that repeated ``split`` gives, from the top down, without COMM_NULL at the end.

    Ranks that are bound less deeply have fewer.
    """
    chosen = _everyone(comm, lambda: Selection(levels, torus_dimension))
    return [made for made, _ in _descend(comm, chosen.locations, with_roots=False)]


def hierarchy_with_roots(comm: MPI.Intracomm, *, levels: str = "all",
                         torus_dimension: int | None = None
                         ) -> list[tuple[MPI.Intracomm, MPI.Intracomm]]:
    """All that repeated ``split_with_roots`` gives: (communicator, roots) from the top down."""
    chosen = _everyone(comm, lambda: Selection(levels, torus_dimension))
    return _descend(comm, chosen.locations, with_roots=True)


def level_info(comm: MPI.Intracomm) -> LevelInfo | None:
    """Type, index and number of siblings of a communicator (GJMM 3.3.1). Local.

    None for one that no split here made. A duplicate has the same.
    """
    return MPI.Comm.Get_attr(comm, _keyval())


def min_level(comm: MPI.Intracomm, ranks: Sequence[int], *, levels: str = "all",
              torus_dimension: int | None = None) -> str:
    """The name of the lowest level that ``ranks`` of ``comm`` share (GJMM 3.3.2, 4.1.4, 4.2).

    Collective; each rank may ask for other ranks. "Unknown" if the caller isn't among them;
    "System - Cluster" for several nodes that no switch in ``SMCOLL_NETWORK`` joins.
    """
    def request() -> Selection:
        computation.check_ranks(ranks, comm.Get_size())
        return Selection(levels, torus_dimension)

    chosen = _everyone(comm, request)
    return computation.min_level(chosen.locations, ranks, comm.Get_rank())


def distances(comm: MPI.Intracomm, *, levels: str = "all",
              torus_dimension: int | None = None) -> list[list[int]]:
    """For all pairs of ranks, how many hardware levels up they meet (``levels.distances``).

    ``comm.size`` lists of as many numbers.
    """
    chosen = _everyone(comm, lambda: Selection(levels, torus_dimension))
    return computation.distances(chosen.locations)


def distance(comm: MPI.Intracomm, first: int, second: int, *, levels: str = "all",
             torus_dimension: int | None = None) -> int:
    """One number of ``distances``. Collective; each rank may ask for another pair."""
    def request() -> Selection:
        computation.check_ranks((first, second), comm.Get_size())
        return Selection(levels, torus_dimension)

    return computation.distance(_everyone(comm, request).locations, first, second)


def locations(comm: MPI.Intracomm, *, levels: str = "all",
              torus_dimension: int | None = None) -> list[Location]:
    """Where the ranks are: for each the path of hardware objects that contain its binding.

    What the functions of ``smcoll.topology.levels`` take.
    """
    return _everyone(comm, lambda: Selection(levels, torus_dimension)).locations


# ---------------------------------------------------------------------- MPI_Comm_split_type


def is_hardware_type(split_type: int) -> bool:
    """Whether ``split_type_of`` serves it. An MPI without these constants has MPI.UNDEFINED."""
    return split_type != MPI.UNDEFINED and split_type in (MPI.COMM_TYPE_HW_UNGUIDED,
                                                          MPI.COMM_TYPE_HW_GUIDED)


def split_type_of(comm: MPI.Intracomm, split_type: int, key: int,
                  info: MPI.Info) -> MPI.Intracomm | None:
    """``comm.Split_type`` for MPI 4's hardware types; None: the type is another one.

    Collective for any type, since some ranks may give MPI.UNDEFINED. UNGUIDED is ``split``, and
    sets ``mpi_hw_resource_type`` in ``info``; GUIDED is ``split_to`` the level in that key,
    COMM_NULL where it is missing or unknown, as MPI says. Further keys: ``smcoll_hw_levels``
    ("all", "network" or "node") and ``smcoll_torus_dimension``.
    """
    types = gather(comm, {"type": operator.index(split_type)})
    wanted = {record["type"] for record in types} - {MPI.UNDEFINED}
    if not any(map(is_hardware_type, wanted)):
        return None
    if len(wanted) > 1:
        raise TopologyError(f"Split_type: ranks give different types: {sorted(wanted)}")
    guided = wanted == {MPI.COMM_TYPE_HW_GUIDED}
    takes_part = split_type != MPI.UNDEFINED

    def request() -> tuple[Selection, str | None]:
        level = None
        if guided and takes_part:
            level = _known_level(_info_value(info, TYPE_KEY))
        return _selection_of(info), level

    chosen = _everyone(comm, request, takes_part)
    members = [rank for rank, path in enumerate(chosen.locations) if path]
    paths = [chosen.locations[rank] for rank in members]
    if not guided:
        found = computation.split(paths)
    elif chosen.level:
        found = computation.split_to(paths, chosen.level)
    else:
        found = [None] * len(members)
    groups: list[Group | None] = [None] * comm.Get_size()
    for rank, group in zip(members, found, strict=True):
        if group is not None:
            groups[rank] = Group(tuple(members[m] for m in group.members), group.info)
    made = _make(comm, groups, key)
    if made and not guided and info:
        info.Set(TYPE_KEY, groups[comm.Get_rank()].info.type)
    return made


def _info_value(info: MPI.Info, key: str) -> str | None:
    return info.Get(key) if info else None


def _known_level(text: str | None) -> str:
    """The level; "" for none, and for one that is not known."""
    try:
        return computation.level_name(text or "")
    except ValueError:
        return ""


def _selection_of(info: MPI.Info) -> Selection:
    text = _info_value(info, TORUS_KEY)
    try:
        dimension = None if text is None else int(text)
    except ValueError:
        raise ValueError(f"{TORUS_KEY}: {text!r} is no whole number") from None
    return Selection(_info_value(info, LEVELS_KEY) or "all", dimension)


# ---------------------------------------------------------------------- agreement


@dataclass(frozen=True)
class _Everyone:
    """What all ranks said: their locations (empty: takes no part), and the level asked for."""

    locations: list[Location]
    level: str | None


def _everyone(comm: MPI.Intracomm, request: Callable[[], object],
              takes_part: bool = True) -> _Everyone:
    """Gather where the ranks are. TopologyError on all ranks for the problem of any.

    ``request()`` gives this rank's selection, or that and a level; what it raises is a problem.
    """
    if isinstance(comm, MPI.Comm) and not comm:
        raise MPI.Exception(MPI.ERR_COMM)
    if not isinstance(comm, MPI.Intracomm):
        raise TypeError(f"expected an intra-communicator, not {type(comm).__name__}")
    record: dict = {"problem": None, "asked": None, "places": []}
    if takes_part:
        try:
            asked = request()
            selection, level = asked if isinstance(asked, tuple) else (asked, None)
            record["asked"] = [selection.levels, selection.torus_dimension, level]
            places = selection.own_location(_number())
            record["places"] = [[place.type, place.index, place.height] for place in places]
            if len(json.dumps(record)) > _LONGEST_LOCATION:
                raise ValueError("the names of this host and its switches are too long")
        except (ValueError, TypeError, OSError) as error:
            record = {"problem": f"rank {comm.Get_rank()}: {error}"[:_LONGEST_PROBLEM]}
    records = gather(comm, record)
    problem = next((r["problem"] for r in records if r["problem"] is not None), None)
    if problem is not None:
        raise TopologyError(problem)
    asked = [r["asked"] for r in records if r["asked"] is not None]
    if any(other != asked[0] for other in asked):
        raise TopologyError("ranks ask for different levels: " + " and ".join(
            map(str, {tuple(one): None for one in asked})))
    return _Everyone([tuple(Place(*place) for place in r["places"]) for r in records],
                     asked[0][2])


def _number() -> int:
    """The rank that made-up bindings count by. Sessions have no COMM_WORLD: without them, 0."""
    return MPI.Intracomm(MPI.COMM_WORLD).Get_rank() if binding.is_made_up() else 0


# ---------------------------------------------------------------------- making communicators


def _make(comm: MPI.Intracomm, groups: list[Group | None], key: int = 0) -> MPI.Intracomm:
    """The communicator of this rank's group, with its LevelInfo, or COMM_NULL.

    ``key``: equal keys keep the order of ``comm``.
    """
    if not any(groups):
        return MPI.Intracomm()         # all ranks know: no communication
    group = groups[comm.Get_rank()]
    made = comm.Split(MPI.UNDEFINED if group is None else group.info.index, key)
    if group is not None:
        MPI.Comm.Set_attr(made, _keyval(), group.info)
    return made


def _make_roots(comm: MPI.Intracomm, groups: list[Group | None]) -> MPI.Intracomm:
    """One colour is enough: a split has one parent (Algorithm 2 takes the parent's number)."""
    if not any(groups):
        return MPI.Intracomm()
    is_root = comm.Get_rank() in computation.roots(groups)
    return comm.Split(0 if is_root else MPI.UNDEFINED, 0)


def _descend(comm: MPI.Intracomm, locations: list[Location],
             with_roots: bool) -> list[tuple[MPI.Intracomm, MPI.Intracomm]]:
    chain = []
    while True:
        groups = computation.split(locations)
        group = groups[comm.Get_rank()]
        made = _make(comm, groups)
        roots = _make_roots(comm, groups) if with_roots else MPI.Intracomm()
        if group is None:
            return chain
        chain.append((made, roots))
        comm, locations = made, [locations[rank] for rank in group.members]


_made_keyval: list[int] = []


def _keyval() -> int:
    """The attribute of a communicator that holds its LevelInfo; duplicates get it, too."""
    if not _made_keyval:
        _made_keyval.append(MPI.Comm.Create_keyval(copy_fn=True))
    return _made_keyval[0]
