"""Which rank of a communicator is on which node: known to all ranks alike. Knows nothing of MPI."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ..calls import in_words


@dataclass(frozen=True)
class Placement:
    """Ranks by node. Nodes are numbered by their lowest rank, a node's ranks by their rank.

    >>> place = Placement(["a", "b", "a"])
    >>> place.members, place.node_of, place.local_of
    ([[0, 2], [1]], [0, 1, 0], [0, 0, 1])
    """

    names: Sequence[Hashable] = field(repr=False)
    members: list[list[int]] = field(init=False)
    node_of: list[int] = field(init=False)
    local_of: list[int] = field(init=False)

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

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self.members)

    @property
    def fewest(self) -> int:
        """Ranks on the node that has the fewest."""
        return min(map(len, self.members))

    @property
    def most(self) -> int:
        """Ranks on the node that has the most."""
        return max(map(len, self.members))

    @property
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


def neighbours(node: int, nodes: int, root: int, chain: bool) -> tuple[int | None, list[int]]:
    """(parent, children) of ``node`` in the tree between nodes; the root has no parent.

    A binomial tree, children in ascending order of the nodes below them: in log2(nodes) steps
    everybody is reached. ``chain``: each node has one child, so that a long vector goes through
    every link once, section by section.
    """
    position = (node - root) % nodes
    if chain:
        parent = None if position == 0 else (node - 1) % nodes
        return parent, [(node + 1) % nodes] if position + 1 < nodes else []
    children = []
    distance = 1
    while distance < nodes and not position & distance:
        if position + distance < nodes:
            children.append((position + distance + root) % nodes)
        distance *= 2
    parent = None if position == 0 else (position - (position & -position) + root) % nodes
    return parent, children
