"""Which rank of a communicator is on which node: known to all ranks alike. Knows nothing of MPI."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from smcoll.sync.calls import in_words


@dataclass(frozen=True)
class Placement:
    """Ranks by node. Nodes are numbered by their lowest rank, a node's ranks by their rank.

    >>> place = Placement(["a", "b", "a"])
    >>> place.members, place.node_of, place.local_of
    ([[0, 2], [1]], [0, 1, 0], [0, 0, 1])
    """

    names: Sequence[Hashable] = field(repr=False)
    # Of each rank: the switches above its node, from the top down; none where they are not known.
    switches: Sequence[tuple[str, ...]] = field(default=(), repr=False)
    members: list[list[int]] = field(init=False)
    node_of: list[int] = field(init=False)
    local_of: list[int] = field(init=False)
    above: list[tuple[str, ...]] = field(init=False, repr=False)       # of each node

    def __post_init__(self):
        numbers: dict[Hashable, int] = {}
        members: list[list[int]] = []
        node_of, local_of = [], []
        for rank, name in enumerate(self.names):
            node = numbers.setdefault(name, len(members))
            if node == len(members):
                members.append([])
            node_of.append(node)
            local_of.append(len(members[node]))
            members[node].append(rank)
        object.__setattr__(self, "members", members)
        object.__setattr__(self, "node_of", node_of)
        object.__setattr__(self, "local_of", local_of)
        switches = self.switches or [()] * len(node_of)
        object.__setattr__(self, "above", [tuple(switches[node[0]]) for node in members])

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self.members)

    @cached_property
    def fewest(self) -> int:
        """Ranks on the node that has the fewest."""
        return min(map(len, self.members))

    @cached_property
    def most(self) -> int:
        """Ranks on the node that has the most."""
        return max(map(len, self.members))

    @cached_property
    def in_rank_order(self) -> bool:
        """Whether the nodes, one after the other, hold the ranks in their order."""
        return [rank for node in self.members for rank in node] == list(range(len(self.names)))

    def role(self, leader: int) -> str:
        """What the lowest rank of a node is there, in words."""
        members = self.members[self.node_of[leader]]
        host = str(self.names[leader]).split(" ")[0]
        if len(members) == 1:
            return f"the only one on {host}"
        return f"the leader of {in_words(members)} on {host}"

    def counterpart(self, rank: int, node: int) -> int:
        """The rank of ``node`` that exchanges long messages with ``rank``."""
        members = self.members[node]
        return members[self.local_of[rank] % len(members)]


def layout(above: Sequence[tuple[str, ...]], root: int = 0) -> list[int]:
    """The nodes in an order in which those below one switch follow each other, ``root`` first.

    ``above``: the switches above each node, from the top down. Else they keep their cyclic order.
    """
    return _laid_out(range(len(above)), above, root, 0)


def _laid_out(nodes: Sequence[int], above: Sequence[tuple[str, ...]], first: int,
              depth: int) -> list[int]:
    order = []
    for group in _below_one_switch(nodes, above, first, depth):
        leader = first if first in group else group[0]
        order += group if len(group) == 1 else _laid_out(group, above, leader, depth + 1)
    return order


def _below_one_switch(nodes: Sequence[int], above: Sequence[tuple[str, ...]], first: int,
                      depth: int) -> list[list[int]]:
    """``nodes`` in groups of one switch at this depth, below the last each one alone.

    In cyclic order, from the group of ``first`` on.
    """
    groups: dict[Hashable, list[int]] = {}
    for node in nodes:
        switch = above[node][depth] if depth < len(above[node]) else node
        groups.setdefault(switch, []).append(node)
    ordered = list(groups.values())
    start = next(i for i, group in enumerate(ordered) if first in group)
    return ordered[start:] + ordered[:start]


def neighbours(node: int, root: int, chain: bool,
               above: Sequence[tuple[str, ...]]) -> tuple[int | None, list[int]]:
    """(parent, children) of ``node`` in the tree between nodes; the root has no parent.

    ``above``: as in ``layout``. A binomial tree of the top switches, whose leaders (the root, or
    their first node) lead one of the switches below each, and so on down to the nodes: no more
    edges between switches than needed (LHS 2.5), and without switches log2(nodes) steps. ``chain``:
    each node has one child, so that a long vector goes through every link once, section by section.
    """
    if chain:
        order = layout(above, root)
        place = order.index(node)
        return order[place - 1] if place else None, order[place + 1:place + 2]
    parent, children = None, []
    group, leader, depth = list(range(len(above))), root, 0
    while len(group) > 1:
        parts = _below_one_switch(group, above, leader, depth)
        leaders = [leader, *(part[0] for part in parts[1:])]
        mine = next(i for i, part in enumerate(parts) if node in part)
        if leaders[mine] == node:
            before, behind = _binomial(mine, len(parts))
            parent = parent if before is None else leaders[before]
            children += [leaders[i] for i in behind]
        group, leader, depth = parts[mine], leaders[mine], depth + 1
    return parent, children


def _binomial(position: int, size: int) -> tuple[int | None, list[int]]:
    """(parent, children) of a position, children in ascending order of the positions below them."""
    children = []
    distance = 1
    while distance < size and not position & distance:
        if position + distance < size:
            children.append(position + distance)
        distance *= 2
    return position - (position & -position) if position else None, children
