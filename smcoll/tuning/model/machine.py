"""Parameters, topology and ranks put together: which level joins which ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smcoll.topology import hardware, levels, synthetic
from smcoll.tuning.model.parameters import LINE, Link, Parameters


@dataclass(frozen=True)
class Tier:
    """A level that joins more than one part of the ranks: ``parts`` of them, ``width`` ranks each.

    Where parts are of different sizes, the largest number counts.
    """

    link: Link
    parts: int
    width: int


@dataclass(frozen=True)
class Machine:
    """A machine and the ranks on it, the first on its first core and so on.

    ``joined[i][j]``: the link over which rank i reads what rank j has written.
    ``cores``: on which the ranks run; more ranks than cores share them in turns.
    """

    parameters: Parameters
    ranks: int
    cores: int
    tiers: tuple[Tier, ...]  # innermost first
    joined: Callable[[int, int], Link]

    @property
    def oversubscribed(self) -> bool:
        """Whether ranks outnumber cores."""
        return self.ranks > self.cores

    @property
    def local(self) -> Link:
        """A core's own memory."""
        return self.parameters.local

    @property
    def domain(self) -> Tier:
        """The innermost level that joins cores (LHS: the socket)."""
        return next((tier for tier in self.tiers if tier.link is not self.local), self.tiers[0])

    @property
    def alpha(self) -> Link:
        """LHS's intra-socket link."""
        return self.domain.link

    @property
    def beta(self) -> Link:
        """LHS's inter-socket link: the level that joins all ranks."""
        return self.tiers[-1].link

    @property
    def q(self) -> int:
        """Ranks in such a domain (LHS: threads in a socket)."""
        return self.domain.parts * self.domain.width

    @property
    def s(self) -> int:
        """Parts of that size (LHS: sockets)."""
        return -(-self.ranks // self.q)

    def copy(self, m: float, nbytes: float) -> float:
        """All ranks copy m lines between own buffers at once; part of ``nbytes`` of a message.

        A single line, where nothing is known of bandwidth, is read and written: 2 Rl (LHS 3.4).
        """
        if m <= 0:
            return 0.0
        if self.local.b is None and m <= 1:
            return 2 * self.local.latency
        return self.local.lines(m, self.sharing(self.local), nbytes)

    def read_all(self, m: float, nbytes: float, d: int | None = None) -> float:
        """Every rank reads m lines of each other rank; ``d`` of them share a link (none: q)."""
        return sum(self.others_at(tier) * tier.link.lines(
            m, self.sharing(tier.link, d), nbytes) for tier in self.tiers)

    def reduce_all(self, m: float, nbytes: float, d: int | None = None) -> float:
        """The same where what is read is reduced."""
        return self.read_all(m, nbytes, d) + sum(
            self.others_at(tier) * tier.link.reduced(m, self.sharing(tier.link, d), nbytes)
            for tier in self.tiers)

    def others_at(self, tier: Tier) -> int:
        """How many ranks a rank meets at a level: those in the other parts."""
        return (tier.parts - 1) * tier.width

    @property
    def running(self) -> int:
        """Ranks that run at once."""
        return min(self.ranks, self.cores)

    def at_once(self, accesses: int) -> int:
        """How many of some ranks' accesses run at the same time: not more than there are cores."""
        return min(accesses, self.running)

    def sharing(self, link: Link, d: int | None = None) -> int:
        """How many accesses share a link if all ranks access at once; 1 if its B is not known.

        q in both directions, also between domains (LHS 2.3), or ``d``.
        """
        if link.B is None:
            return 1
        return min(self.running, d or self.q)


def of_topology(description: str, ranks: int, parameters: Parameters) -> Machine:
    """A synthetic machine such as "package:4 numa:1 l3:1 core:8". ValueError when malformed."""
    return of_hardware(hardware.build_tree(synthetic.parse(description)), ranks, parameters)


def of_hardware(root: hardware.HardwareObject, ranks: int, parameters: Parameters,
                cpus: Sequence[int] = ()) -> Machine:
    """Ranks on a machine's cores, as far as this process may use them (``cpus``; none: all).

    ValueError for fewer than 2 ranks.
    """
    if ranks < 2:
        raise ValueError(f"{ranks} ranks: a collective needs 2")
    paths = _cores(root, frozenset(cpus) or root.cpus)
    places = [paths[rank % len(paths)] for rank in range(ranks)]
    tiers = tuple(_tiers(places[:len(paths)], parameters))

    @functools.cache
    def joined(first: int, second: int) -> Link:
        if places[first] == places[second]:
            return parameters.local     # they take turns on one core
        return _link(_names(levels.shared((places[first], places[second]))), parameters)

    if not tiers:       # a single core
        tiers = (Tier(parameters.local, ranks, 1),)
    elif ranks > len(paths):
        tiers = (Tier(parameters.local, -(-ranks // len(paths)), 1),
                 *(Tier(tier.link, tier.parts, tier.width * -(-ranks // len(paths)))
                   for tier in tiers))
    return Machine(parameters, ranks, len(paths), tiers, joined)


def _cores(root: hardware.HardwareObject, cpus: frozenset[int]) -> list[levels.Location]:
    """The location of one usable PU of each core, in hardware order."""
    cores = [thing for thing in root.walk() if thing.type == "Core"]
    cores = cores or [thing for thing in root.walk() if thing.type == "PU"]
    return [levels.locate(root, frozenset({min(core.cpus & cpus)}), "machine")
            for core in cores if core.cpus & cpus]


def _tiers(places: Sequence[levels.Location], parameters: Parameters) -> list[Tier]:
    """The levels that really join ranks, innermost first."""
    found: list[Tier] = []

    def descend(ranks: tuple[int, ...], depth: int) -> None:
        groups = dict.fromkeys(levels.split([places[rank] for rank in ranks]))
        parts = [tuple(ranks[member] for member in group.members) for group in groups if group]
        if len(parts) < 2:
            return
        link = _link(_names(levels.shared(places[rank] for rank in ranks)), parameters)
        width = max(map(len, parts))
        if depth == len(found):
            found.append(Tier(link, len(parts), width))
        else:
            old = found[depth]
            found[depth] = Tier(link, max(old.parts, len(parts)), max(old.width, width))
        for part in parts:
            descend(part, depth + 1)

    descend(tuple(range(len(places))), 0)
    return found[::-1]


def _names(path: levels.Location) -> tuple[str, ...]:
    """All names of the deepest object of a path: redundant levels have the same CPUs."""
    deepest = path[-1]
    return tuple(place.type for place in reversed(path) if place.height == deepest.height)


def _link(names: tuple[str, ...], parameters: Parameters) -> Link:
    return parameters.level(*names)


def lines(nbytes: float) -> float:
    """Cache lines of a message; parts of lines beyond the first."""
    return max(1.0, nbytes / LINE) if nbytes > 0 else 0.0
