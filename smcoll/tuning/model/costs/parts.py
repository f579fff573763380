"""Parts of several algorithms: trees, slices, stages."""

from __future__ import annotations

from smcoll.sync.trees import Tree
from smcoll.tuning.model import lhs
from smcoll.tuning.model.machine import Machine


def fan_in_tree(machine: Machine, m: float, nbytes: float, radix: int,
                posts: bool = False) -> tuple[list, list, int]:
    """(when each rank has its subtree, what it moved, steps): GS's tree, as it is in use.

    A leaf copies its vector in. A parent reduces its children's onto its own, in one pass, into
    its region; the root does so only if it ``posts`` the result.
    """
    tree, ranks = Tree(machine.ranks, radix), machine.ranks
    ready, moved, depth = [0.0] * ranks, [0.0] * ranks, [0] * ranks
    parents = sum(bool(tree.children_of(rank)) for rank in range(ranks))
    for rank in reversed(range(ranks)):     # breadth first: children have higher numbers
        children = tree.children_of(rank)
        if not children:
            moved[rank] = machine.copy(m, nbytes)
        for number, child in enumerate(children):
            link = machine.joined(rank, child)
            moved[rank] += link.latency if number else 0.0      # its flag; the first is waited for
            d = min(parents, machine.sharing(link))
            moved[rank] += link.lines(m, d, nbytes) + link.reduced(m, d, nbytes)
        if children and (rank or posts):
            moved[rank] += machine.joined(rank, children[0]).rewritten(m, nbytes)
        ready[rank] = moved[rank] + max(
            (ready[child] + machine.joined(rank, child).latency for child in children), default=0.0)
        depth[rank] = max((depth[child] + 1 for child in children), default=0)
    return ready, moved, depth[0]


def fan_out_tree(machine: Machine, m: float, nbytes: float, radix: int,
                 root: float) -> tuple[list, list, int]:
    """(when each rank is through, what it moved, steps). ``root``: what the root moves.

    A child copies its parent's data; one with children does that into its own region first, and
    copies from there for itself.
    """
    tree, ranks = Tree(machine.ranks, radix), machine.ranks
    posted, done, moved, depth = [0.0] * ranks, [0.0] * ranks, [0.0] * ranks, [0] * ranks
    posted[0] = done[0] = moved[0] = root
    for rank in range(1, ranks):
        parent = tree.parent_of(rank)
        link = machine.joined(rank, parent)
        siblings = min(len(tree.children_of(parent)), machine.sharing(link))
        taken = link.lines(m, siblings, nbytes)
        own = machine.copy(m, nbytes) if tree.children_of(rank) else 0.0
        posted[rank] = posted[parent] + link.latency + taken
        done[rank] = posted[rank] + own
        moved[rank] = taken + own
        depth[rank] = depth[parent] + 1
    return done, moved, max(depth)


def up_the_tree(machine: Machine, m: float, nbytes: float, n: int,
                posts: bool = True) -> tuple[float, float, int]:
    """LHS (3) and the copy-in: (along the tree, what the top moves, steps).

    ``posts``: the top's result goes into its region, not straight to the user.
    """
    steps = [(machine.alpha, machine.at_once(d)) for d in lhs.simultaneous(machine.q, n)]
    steps += [(machine.beta, 1)] * lhs.ceil_log(machine.s, n)   # between domains last
    path, moved = machine.copy(m, nbytes), 0.0
    for number, (link, d) in enumerate(steps, 1):   # a parent has n - 1 children in each
        moved += (n - 1) * (link.lines(m, d, nbytes) + link.reduced(m, d, nbytes))
        if posts or number < len(steps):
            moved += link.rewritten(m, nbytes)
        path += (n - 1) * link.latency
    return path + moved, moved, len(steps)


def tree_total(machine: Machine, m: float, nbytes: float) -> float:
    """What all ranks of a tree move: every rank but the root is read and reduced once."""
    return machine.copy(m, nbytes) * (machine.ranks // 2) + (machine.ranks - 1) * (
        machine.alpha.lines(m, 1, nbytes) + machine.alpha.reduced(m, 1, nbytes))


def halving(machine: Machine, m: float, nbytes: float) -> tuple[float, float, int]:
    """(latencies, what a rank moves, steps) of GS 3.1's pairwise reduce-scatter."""
    ranks, n = machine.ranks, 1 << lhs.floor_log(machine.ranks)
    latency, moved, waits = 0.0, machine.copy(m, nbytes), 1
    if n < ranks:       # a pair folds: each reduces half, the lower rank copies the other half
        link = machine.joined(0, n)
        d = min(2 * (ranks - n), machine.sharing(link))
        latency += 2 * link.latency
        moved += 2 * link.lines(m / 2, d, nbytes) + link.reduced(m / 2, d, nbytes)
        waits += 2
    distance = n // 2
    part = m
    while distance:
        link = machine.joined(0, distance)
        part /= 2
        latency += link.latency
        d = min(n, machine.sharing(link))
        moved += link.lines(part, d, nbytes) + link.reduced(part, d, nbytes)
        waits += 1
        distance //= 2
    return latency + machine.beta.latency, moved, waits


def own_slice(machine: Machine, m: float, nbytes: float, d: int, posted: bool = True) -> float:
    """LHS (8), staged: all but the own slice is copied in, the own one of all ranks is reduced.

    ``posted``: into the region; else to the user, and what is posted is copied from there.

    ``d`` ranks share a link at a time: all where everybody takes the sources in the same order
    (the naive form), q where they take them by turns (Mamidala's cyclic form).
    """
    part = m / machine.ranks
    moved = machine.copy(m - part, nbytes) + machine.reduce_all(part, nbytes, d)
    return moved + machine.beta.rewritten(part, nbytes) if posted else moved


def hierarchical_slices(machine: Machine, m: float, nbytes: float) -> tuple[float, float, int]:
    """LHS (10) and the copy-in: (latencies, moved, steps). Tiles inside a domain, a tree across."""
    alpha, beta, q = machine.alpha, machine.beta, machine.q
    moved, latency, waits = machine.copy(m - m / q, nbytes), 0.0, 0
    if q > 1:
        d = min(q, machine.sharing(alpha))
        moved += (q - 1) * (alpha.lines(m / q, d, nbytes) + alpha.reduced(m / q, d, nbytes))
        moved += alpha.rewritten(m / q, nbytes)
        latency += alpha.latency
        waits += 1
    for _ in range(lhs.ceil_log(machine.s)):
        d = machine.at_once(q)
        moved += beta.lines(m / q, d, nbytes) + beta.reduced(m / q, d, nbytes)
        moved += beta.rewritten(m / q, nbytes)
        latency += beta.latency
        waits += 1
    return latency, moved, waits


def reduced_before(machine: Machine, m: float, nbytes: float, exclusive: bool) -> float:
    """The last rank reads and reduces the vectors of all others.

    ``exclusive``: not onto its own, so that the first is only copied.
    """
    last = machine.ranks - 1
    read = 0.0
    for other in range(last):
        link = machine.joined(last, other)
        d = min(last, machine.sharing(link))
        read += link.lines(m, d, nbytes)
        if other > 0 or not exclusive:
            read += link.reduced(m, d, nbytes)
    return read


def read_between(machine: Machine, m: float, nbytes: float) -> float:
    """A leader reads m lines of another domain; nothing where there is one only."""
    return machine.beta.lines(m, 1, nbytes) if machine.s > 1 else 0.0


def read_inside(machine: Machine, m: float, nbytes: float) -> float:
    """A domain's other ranks read m lines of its leader at once."""
    readers = machine.at_once(machine.q - 1)
    return machine.alpha.lines(m, readers, nbytes) if readers else 0.0


def one_stage(machine: Machine, m: float, nbytes: float) -> float:
    """LHS (4), second form, without the copy-in: q readers share the link between domains."""
    if machine.s > 1:
        return machine.beta.lines(m, machine.at_once(machine.q), nbytes)
    return read_inside(machine, m, nbytes)
