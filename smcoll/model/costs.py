"""What each algorithm of smcoll's costs: LHS's terms, and those that direct access does not have.

Added to LHS: copying into the data regions and out of them, entering a call (``call``), flags and
banks of each phase (``step``), lines taken back from readers (``rewrite``) and from memory
(``evicted``), sections that follow each other through a pipeline, small messages in the flags' own
lines, and turns of the run queue where ranks outnumber cores.

A function gives the ``Work`` of one section. ``machine`` says which level joins which ranks;
``plan`` is what a row of a decision table says. Sizes as in `smcoll compare`: bytes of the vector,
or of the block for one rank in (all)gather, scatter, alltoall and reduce_scatter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..trees import Tree
from . import lhs
from .machine import Machine, lines
from .parameters import LINE

HEADER = 32         # bytes of a flag line before its payload
STREAM_CELL = 224   # bytes of a message that travels in a stream's cell
STREAM_CHUNK = 32 << 10


@dataclass(frozen=True)
class Plan:
    """How a call is done; see smcoll.select.Decision and Config."""

    fan_in: int
    fan_out: int
    section_bytes: int = 64 << 10
    pipelined: bool = True
    inline_size: int = 2048
    rooted_inline_size: int = 224
    arity: int = 2          # n of LHS's n-ary trees: a parent has n - 1 children in each step


@dataclass(frozen=True)
class Work:
    """What one section of a call takes, in ns.

    ``path``: from the first rank's start to the last one's end. ``busiest``: data moved by the rank
    that moves most. ``total``: by all ranks. ``waits``: dependent steps in which somebody waits for
    somebody. ``phases``: parts of a section on the rank that has most.
    """

    path: float
    busiest: float
    total: float
    waits: int
    phases: int = 1


Cost = Callable[[Machine, float, float, Plan], Work]

COSTS: dict[tuple[str, str], Cost] = {}
# Sections of the whole vector through the data regions; the others are straight code.
SECTIONED: set[tuple[str, str]] = set()
# In which form a message of at most this size travels in the flags' own lines: field of Plan.
INLINE = {
    ("bcast", "fan_out"): "rooted_inline_size", ("reduce", "fan_in"): "rooted_inline_size",
    ("allreduce", "all_read"): "inline_size", ("allgather", "direct"): "inline_size",
    ("reduce_scatter", "direct"): "inline_size", ("scan", "direct"): "rooted_inline_size",
    ("exscan", "direct"): "rooted_inline_size",
}


def cost(collective: str, name: str, sectioned: bool = True):
    """Registers a function for an algorithm."""
    def register(function: Cost) -> Cost:
        COSTS[collective, name] = function
        if sectioned:
            SECTIONED.add((collective, name))
        return function

    return register


# How far away from the core a message lies depends on all buffers that are in use: two that new
# values come from, what is sent, what is received. In a reduction, and where the parameters are
# measured, each has the message's size; blocks for each of p ranks make some of them larger.
BUFFERS = {
    "bcast": lambda p: 3.0, "gather": lambda p: 3.0 + p, "allgather": lambda p: 3.0 + p,
    "scatter": lambda p: 3.0 * p + 1, "reduce_scatter": lambda p: 3.0 * p + 1,
    "alltoall": lambda p: 4.0 * p,
}


def footprint(collective: str, nbytes: int, machine: Machine) -> float:
    """Size of a reduction's message with as many bytes in use. Ranks on a core share its caches."""
    buffers = BUFFERS[collective](machine.ranks) if collective in BUFFERS else 4.0
    return nbytes * buffers / 4 * machine.ranks / machine.running


def predict(collective: str, name: str, machine: Machine, nbytes: int, plan: Plan) -> float:
    """ns of a call. KeyError for an unknown algorithm, UnknownParameter where one is missing."""
    key = collective, name
    function = COSTS[key]
    evicted = machine.parameters.evicted
    return _call(key, function, machine, nbytes, plan) + (
        lines(nbytes) * evicted.at(nbytes) if evicted is not None and nbytes else 0.0)


def _call(key: tuple[str, str], function: Cost, machine: Machine, nbytes: int,
          plan: Plan) -> float:
    collective, name = key
    if key in INLINE and vector_bytes(collective, nbytes, machine.ranks) <= getattr(
            plan, INLINE[key]):
        # The first line comes with the flag, and what fits beside the flag with it.
        m = max(0.0, lines(nbytes + HEADER) - 1) if nbytes else 0.0
        return in_time(collective, machine, function(machine, m, nbytes, plan), 1, False, True)
    if key not in SECTIONED:
        away = footprint(collective, nbytes, machine)
        return in_time(collective, machine, function(machine, lines(nbytes), away, plan), 1,
                       False, False)
    section = plan.section_bytes
    if collective == "reduce_scatter":
        section = max(64, section // machine.ranks)
    elif name == "recursive_doubling":
        section = max(64, section // 2)
    sections = max(1, -(-nbytes // section))
    work = function(machine, lines(nbytes / sections), footprint(collective, nbytes, machine), plan)
    return in_time(collective, machine, work, sections, plan.pipelined, False)


def vector_bytes(collective: str, nbytes: int, ranks: int) -> int:
    """What the engine counts of a message: of a reduce_scatter the whole vector."""
    return nbytes * ranks if collective == "reduce_scatter" else nbytes


def in_time(collective: str, machine: Machine, work: Work, sections: int, pipelined: bool,
            inline: bool) -> float:
    """Sections in a row, on cores of their own or on shared ones.

    With a core for each rank, what the first section waits for is waited for once if sections are
    pipelined; each further one takes what the busiest rank moves. Where ranks share cores, all
    their work counts, and each dependent step costs a turn of the run queue.
    """
    parameters = machine.parameters
    call = parameters.call_overhead(collective)
    steps = 0.0 if inline else work.phases * sections * parameters.step
    if not machine.oversubscribed:
        return call + steps + work.path + (sections - 1) * (
            work.busiest if pipelined else work.path)
    share = machine.ranks / machine.cores
    turns = work.waits + (sections - 1) * (1 if pipelined else work.waits)
    return (share * (call + steps) + sections * work.total / machine.cores
            + turns * share * parameters.turn())


# ---------------------------------------------------------------------- parts


def everyone(machine: Machine, moved: float, waits: int, phases: int) -> Work:
    """All ranks do the same at the same time, with ``waits`` exchanges of everybody's flags."""
    busy = moved + waits * other_flags(machine)
    return Work(busy + waits * machine.beta.latency, busy, machine.ranks * busy, waits, phases)


def other_flags(machine: Machine) -> float:
    """Reading everybody's flags beyond the one that is waited for: they are there then."""
    return max(0.0, sum(machine.others_at(tier) * tier.link.latency for tier in machine.tiers)
               - machine.beta.latency)


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


# ---------------------------------------------------------------------- barrier


@cost("barrier", "all_read", sectioned=False)
def barrier_all_read(machine, m, nbytes, plan):
    """All flags are written at once; a rank reads those of all others one after the other.

    It waits for the first, the others' lines are there then: one access each.
    """
    return everyone(machine, 0.0, 1, 1)


@cost("barrier", "tree", sectioned=False)
def barrier_tree(machine, m, nbytes, plan):
    """Fan-in and fan-out of flags (GS 3.4): the latencies along both trees."""
    ready, _, up = fan_in_tree(machine, 0, 0, plan.fan_in)
    done, _, down = fan_out_tree(machine, 0, 0, plan.fan_out, 0.0)
    return Work(ready[0] + max(done), 0.0, 0.0, up + down, 2)


@cost("barrier", "dissemination", sectioned=False)
def barrier_dissemination(machine, m, nbytes, plan):
    """ceil(log2 p) steps, in step i a flag from rank - 2^i."""
    steps = lhs.ceil_log(machine.ranks)
    path = sum(max(machine.joined(rank, (rank - (1 << i)) % machine.ranks).latency
                   for rank in range(machine.ranks)) for i in range(steps))
    return Work(path, 0.0, 0.0, steps, steps)


@cost("barrier", "hierarchical", sectioned=False)
def barrier_hierarchical(machine, m, nbytes, plan):
    """LHS 2.6: equation (5) with no load, so latencies only."""
    up = lhs.ceil_log(machine.q) * machine.alpha.latency
    up += lhs.ceil_log(machine.s) * machine.beta.latency
    down = machine.beta.latency + (machine.alpha.latency if machine.s > 1 and machine.q > 1 else 0)
    waits = lhs.ceil_log(machine.q) + lhs.ceil_log(machine.s) + 2
    return Work(up + down, 0.0, 0.0, waits, 2)


# ---------------------------------------------------------------------- bcast


@cost("bcast", "fan_out")
def bcast_fan_out(machine, m, nbytes, plan):
    """GS 3.3: the root copies in, children copy out, level by level."""
    done, moved, depth = fan_out_tree(machine, m, nbytes, plan.fan_out, machine.copy(m, nbytes))
    return Work(max(done), max(moved), sum(moved), depth)


@cost("bcast", "n_ary")
def bcast_n_ary(machine, m, nbytes, plan):
    """LHS 2.2: an n-ary tree, between domains first; each level is copied in and read."""
    copy, readers = machine.copy(m, nbytes), plan.arity - 1
    path = busiest = copy
    waits = 0
    for link, count in ((machine.beta, machine.s), (machine.alpha, machine.q)):
        steps = lhs.ceil_log(count, plan.arity)
        path += steps * (link.latency + link.lines(m, readers, nbytes))
        if count > 1:
            busiest = max(busiest, link.lines(m, readers, nbytes) + copy)
        waits += steps
    return Work(path, busiest, machine.ranks * (busiest + copy) / 2, waits)


def one_stage(machine: Machine, m: float, nbytes: float) -> float:
    """LHS (4), second form, without the copy-in: q readers share the link between domains."""
    if machine.s > 1:
        return machine.beta.lines(m, machine.q, nbytes)
    return machine.alpha.lines(m, machine.q - 1, nbytes)


@cost("bcast", "one_stage")
def bcast_one_stage(machine, m, nbytes, plan):
    """Equation (4), second form, and the root's copy-in."""
    copy, read = machine.copy(m, nbytes), one_stage(machine, m, nbytes)
    total = copy + (machine.ranks - 1) * read
    return Work(copy + machine.beta.latency + read, max(copy, read), total, 1)


@cost("bcast", "two_stage")
def bcast_two_stage(machine, m, nbytes, plan):
    """Equation (4), first form; socket masters pass on through their own regions."""
    copy = machine.copy(m, nbytes)
    between = machine.beta.lines(m, 1, nbytes) if machine.s > 1 else 0.0
    inside = machine.alpha.lines(m, machine.q - 1, nbytes) if machine.q > 1 else 0.0
    path = copy + between + inside
    path += (machine.s > 1) * machine.beta.latency + (machine.q > 1) * machine.alpha.latency
    master = between + copy
    total = copy + (machine.s - 1) * master + (machine.ranks - machine.s) * inside
    return Work(path, max(master, inside), total, (machine.s > 1) + (machine.q > 1), 2)


@cost("bcast", "scatter_allgather")
def bcast_scatter_allgather(machine, m, nbytes, plan):
    """Each rank reads its part of the root's region and posts it; then all read all parts."""
    part = m / machine.ranks
    copy = machine.copy(m, nbytes)
    read = machine.beta.lines(part, machine.sharing(machine.beta), nbytes)
    rest = machine.copy(part, nbytes) + machine.read_all(part, nbytes)
    path = copy + 2 * machine.beta.latency + read + rest
    return Work(path, max(copy, read + rest), copy + machine.ranks * (read + rest), 2, 2)


# ---------------------------------------------------------------------- reduce


@cost("reduce", "fan_in")
def reduce_fan_in(machine, m, nbytes, plan):
    """GS 3.2: leaves copy in, parents reduce, the root into the user's buffer."""
    ready, moved, depth = fan_in_tree(machine, m, nbytes, plan.fan_in)
    return Work(ready[0], max(moved), sum(moved), depth)


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


@cost("reduce", "reduce_scatter_gather")
def reduce_scatter_gather(machine, m, nbytes, plan):
    """Pairwise reduce-scatter, then the root alone reads all slices."""
    latency, moved, waits = halving(machine, m, nbytes)
    n = 1 << lhs.floor_log(machine.ranks)
    gathered = machine.copy(m / n, nbytes) + sum(
        machine.joined(0, other).lines(m / n, 1, nbytes) for other in range(1, n))
    return Work(latency + machine.beta.latency + moved + gathered, moved + gathered,
                machine.ranks * moved + gathered, waits + 1, 3)


def own_slice(machine: Machine, m: float, nbytes: float, d: int) -> float:
    """LHS (8), staged: all but the own slice is copied in, the own one of all ranks is reduced.

    ``d`` ranks share a link at a time: all where everybody takes the sources in the same order
    (the naive form), q where they take them by turns (Mamidala's cyclic form).
    """
    part = m / machine.ranks
    return (machine.copy(m - part, nbytes) + machine.reduce_all(part, nbytes, d)
            + machine.beta.rewritten(part, nbytes))


def gathered_at_root(machine: Machine, moved: float, part: float, nbytes: float) -> Work:
    """Slices that the root alone reads, after all ranks have moved ``moved``."""
    moved += other_flags(machine)
    read = other_flags(machine) + sum(machine.joined(0, other).lines(part, 1, nbytes)
                                      for other in range(1, machine.ranks))
    return Work(2 * machine.beta.latency + moved + read, moved + read,
                machine.ranks * moved + read, 2, 3)


@cost("reduce", "tiled")
def reduce_tiled(machine, m, nbytes, plan):
    """LHS 2.4, naive: each rank reduces its slice of all vectors, the root gathers the slices."""
    moved = own_slice(machine, m, nbytes, machine.ranks)
    return gathered_at_root(machine, moved, m / machine.ranks, nbytes)


@cost("reduce", "tiled_cyclic")
def reduce_tiled_cyclic(machine, m, nbytes, plan):
    """The same with sources by turns."""
    moved = own_slice(machine, m, nbytes, machine.q)
    return gathered_at_root(machine, moved, m / machine.ranks, nbytes)


def up_the_tree(machine: Machine, m: float, nbytes: float, n: int) -> tuple[float, float, int]:
    """LHS (3) and the copy-in: (along the tree, what the top moves, steps)."""
    path, moved, waits = machine.copy(m, nbytes), 0.0, 0
    # A parent with n - 1 children in each step; the steps between domains come last.
    for d in lhs.simultaneous(machine.q, n):
        moved += (n - 1) * (machine.alpha.lines(m, d, nbytes) + machine.alpha.reduced(m, d, nbytes))
        moved += machine.alpha.rewritten(m, nbytes)
        path += (n - 1) * machine.alpha.latency
        waits += 1
    for _ in range(lhs.ceil_log(machine.s, n)):
        moved += (n - 1) * (machine.beta.lines(m, 1, nbytes) + machine.beta.reduced(m, 1, nbytes))
        moved += machine.beta.rewritten(m, nbytes)
        path += (n - 1) * machine.beta.latency
        waits += 1
    return path + moved, moved, waits


def tree_total(machine: Machine, m: float, nbytes: float) -> float:
    """What all ranks of a tree move: every rank but the root is read and reduced once."""
    return machine.copy(m, nbytes) * (machine.ranks // 2) + (machine.ranks - 1) * (
        machine.alpha.lines(m, 1, nbytes) + machine.alpha.reduced(m, 1, nbytes))


@cost("reduce", "n_ary")
def reduce_n_ary(machine, m, nbytes, plan):
    """Equation (3), and the copy-in."""
    path, moved, waits = up_the_tree(machine, m, nbytes, plan.arity)
    return Work(path, moved, tree_total(machine, m, nbytes), waits)


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
        moved += beta.lines(m / q, q, nbytes) + beta.reduced(m / q, q, nbytes)
        moved += beta.rewritten(m / q, nbytes)
        latency += beta.latency
        waits += 1
    return latency, moved, waits


@cost("reduce", "tiled_hierarchical")
def reduce_tiled_hierarchical(machine, m, nbytes, plan):
    """Equation (10), and the root gathers the slices of its domain."""
    latency, moved, waits = hierarchical_slices(machine, m, nbytes)
    gathered = (machine.q - 1) * machine.alpha.lines(m / machine.q, 1, nbytes)
    return Work(latency + machine.alpha.latency + moved + gathered, moved + gathered,
                machine.ranks * moved + gathered, waits + 1, 3)


# ---------------------------------------------------------------------- allreduce


@cost("allreduce", "all_read")
def allreduce_all_read(machine, m, nbytes, plan):
    """Every rank copies its vector in and reduces all of them: one dependent step."""
    moved = machine.copy(m, nbytes) + machine.reduce_all(m, nbytes, machine.ranks)
    return everyone(machine, moved, 1, 2)


@cost("allreduce", "fan_in_fan_out")
def allreduce_fan_in_fan_out(machine, m, nbytes, plan):
    """GS 3.1: fan-in to rank 0, fan-out from it."""
    ready, up, height = fan_in_tree(machine, m, nbytes, plan.fan_in, posts=True)
    done, down, depth = fan_out_tree(machine, m, nbytes, plan.fan_out, machine.copy(m, nbytes))
    moved = [first + second for first, second in zip(up, down, strict=True)]
    return Work(ready[0] + max(done), max(moved), sum(moved), height + depth, 2)


@cost("allreduce", "recursive_doubling")
def allreduce_recursive_doubling(machine, m, nbytes, plan):
    """GS 3.1: copy in, log2 N steps in which both partners reduce both vectors, copy out."""
    ranks, n = machine.ranks, 1 << lhs.floor_log(machine.ranks)
    latency, moved, waits = 0.0, 2 * machine.copy(m, nbytes), 1
    if n < ranks:
        link = machine.joined(0, n)
        latency += 3 * link.latency
        moved += 2 * link.lines(m / 2, 2, nbytes) + link.reduced(m / 2, 2, nbytes)
        waits += 3
    for step in range(lhs.ceil_log(n)):
        link = machine.joined(0, 1 << step)
        latency += link.latency
        d = min(n, machine.sharing(link))
        moved += link.lines(m, d, nbytes) + link.reduced(m, d, nbytes) + link.rewritten(m, nbytes)
        waits += 1
    return Work(latency + machine.beta.latency + moved, moved, ranks * moved, waits, 3)


@cost("allreduce", "recursive_halving")
def allreduce_recursive_halving(machine, m, nbytes, plan):
    """GS 3.1: pairwise reduce-scatter, then everybody reads the slices from their owners."""
    latency, moved, waits = halving(machine, m, nbytes)
    n = 1 << lhs.floor_log(machine.ranks)
    gathered = machine.copy(m / n, nbytes) + machine.read_all(m / machine.ranks, nbytes) * (
        machine.ranks / n * (n - 1) / (machine.ranks - 1))
    moved += gathered
    return Work(latency + machine.beta.latency + moved, moved, machine.ranks * moved, waits + 1, 3)


def with_allgather(machine: Machine, moved: float, part: float, nbytes: float) -> float:
    """The own slice is copied to the user and to the region, the others' are read."""
    return moved + machine.copy(part, nbytes) + machine.read_all(part, nbytes)


@cost("allreduce", "tiled")
def allreduce_tiled(machine, m, nbytes, plan):
    """LHS 2.4, naive, then an allgather of the slices."""
    moved = own_slice(machine, m, nbytes, machine.ranks)
    moved = with_allgather(machine, moved, m / machine.ranks, nbytes)
    return everyone(machine, moved, 2, 3)


@cost("allreduce", "tiled_cyclic")
def allreduce_tiled_cyclic(machine, m, nbytes, plan):
    """The same with sources by turns."""
    moved = own_slice(machine, m, nbytes, machine.q)
    moved = with_allgather(machine, moved, m / machine.ranks, nbytes)
    return everyone(machine, moved, 2, 3)


def broadcast_after(machine: Machine, m: float, nbytes: float) -> tuple[float, float]:
    """LHS (4) from a region in which the result lies already: (latencies, moved)."""
    two = machine.beta.latency + machine.alpha.latency
    two_moved = (machine.beta.lines(m, 1, nbytes) if machine.s > 1 else 0.0) + (
        machine.alpha.lines(m, machine.q - 1, nbytes) if machine.q > 1 else 0.0)
    one_moved = one_stage(machine, m, nbytes)
    if two + two_moved < machine.beta.latency + one_moved:
        return two, two_moved
    return machine.beta.latency, one_moved


@cost("allreduce", "tiled_hierarchical")
def allreduce_tiled_hierarchical(machine, m, nbytes, plan):
    """Equation (11), and the copy-in."""
    latency, moved, waits = hierarchical_slices(machine, m, nbytes)
    extra, read = broadcast_after(machine, m, nbytes)
    return Work(latency + extra + moved + read, moved + read, machine.ranks * (moved + read),
                waits + 1, 3)


@cost("allreduce", "reduce_broadcast")
def allreduce_reduce_broadcast(machine, m, nbytes, plan):
    """Equation (5), and the copy-in."""
    path, moved, waits = up_the_tree(machine, m, nbytes, plan.arity)
    latency, read = broadcast_after(machine, m, nbytes)
    return Work(path + latency + read, moved + read,
                tree_total(machine, m, nbytes) + (machine.ranks - 1) * read, waits + 1, 2)


@cost("allreduce", "dissemination")
def allreduce_dissemination(machine, m, nbytes, plan):
    """Equations (6) and (7), the copy-in and, of each step's result, the copy that is posted."""
    alpha, beta = machine.alpha, machine.beta
    inside = 1 << lhs.floor_log(machine.q)
    excess = machine.q - inside
    steps = [alpha] * lhs.ceil_log(inside) + [beta] * lhs.ceil_log(machine.s)
    moved = machine.copy(m, nbytes)
    for link in steps:
        d = min(inside, machine.sharing(link))
        moved += link.lines(m, d, nbytes) + link.reduced(m, d, nbytes) + link.rewritten(m, nbytes)
    latency = sum(link.latency for link in steps)
    if excess:
        moved += 2 * alpha.lines(m, excess, nbytes)
        latency += 2 * alpha.latency
    moved += machine.copy(m, nbytes)
    waits = len(steps) + 2 * bool(excess)
    return Work(latency + moved, moved, machine.ranks * moved, waits, 2)


# ---------------------------------------------------------------------- one message for each rank


def streamed(machine: Machine, sender: float, receiver: float, total: float, m: float) -> Work:
    """Messages through the streams: both sides work at once, a chunk apart."""
    chunk = min(1.0, STREAM_CHUNK / (m * LINE)) if m else 1.0
    behind = chunk * min(sender, receiver)
    path = machine.beta.latency + max(sender, receiver) + behind
    chunks = max(1, -(-int(m * LINE) // STREAM_CHUNK))
    return Work(path, max(sender, receiver), total, 1, chunks)


@cost("gather", "direct", sectioned=False)
def gather_direct(machine, m, nbytes, plan):
    """Each rank copies its block into its stream; the root reads one after the other."""
    copy = machine.copy(m, nbytes)
    read = copy + sum(machine.joined(0, other).lines(m, 1, nbytes)
                      for other in range(1, machine.ranks))
    return streamed(machine, copy, read, (machine.ranks - 1) * copy + read, m)


@cost("scatter", "direct", sectioned=False)
def scatter_direct(machine, m, nbytes, plan):
    """The root copies a block into each stream, and its own."""
    copy = machine.copy(m, nbytes)
    read = max(machine.joined(0, other).lines(m, 1, nbytes) for other in range(1, machine.ranks))
    total = machine.ranks * copy + (machine.ranks - 1) * read
    return streamed(machine, machine.ranks * copy, read, total, m)


@cost("scatter", "two_stage", sectioned=False)
def scatter_two_stage(machine, m, nbytes, plan):
    """LHS 2.6: domain masters read their domain's blocks, then each rank its own from them."""
    copy, q = machine.copy(m, nbytes), machine.q
    between = machine.beta.lines(m * q, 1, nbytes) if machine.s > 1 else 0.0
    inside = machine.alpha.lines(m, q - 1, nbytes) if q > 1 else 0.0
    path = machine.ranks * copy + between + inside + machine.beta.latency + machine.alpha.latency
    total = machine.ranks * (copy + inside) + (machine.s - 1) * between
    return Work(path, machine.ranks * copy, total, 2)


@cost("alltoall", "direct", sectioned=False)
def alltoall_direct(machine, m, nbytes, plan):
    """Each rank copies a block into each stream, reads one from each, and copies its own."""
    moved = machine.ranks * machine.copy(m, nbytes) + machine.read_all(m, nbytes)
    return Work(machine.beta.latency + moved, moved, machine.ranks * moved, 1,
                max(1, -(-int(m * LINE) // STREAM_CHUNK)) * (machine.ranks - 1))


@cost("allgather", "direct")
def allgather_direct(machine, m, nbytes, plan):
    """Every rank posts its block, copies it for itself, and reads all others."""
    moved = 2 * machine.copy(m, nbytes) + machine.read_all(m, nbytes)
    return everyone(machine, moved, 1, 2)


# ---------------------------------------------------------------------- reduce_scatter


@cost("reduce_scatter", "direct")
def reduce_scatter_direct(machine, m, nbytes, plan):
    """Every rank copies the others' blocks in and reduces its own of all vectors."""
    moved = (machine.ranks - 1) * machine.copy(m, nbytes) + machine.reduce_all(m, nbytes)
    return everyone(machine, moved, 1, 2)


def scatter_stage(machine: Machine, m: float, nbytes: float, stages: int) -> tuple[float, float]:
    """LHS 2.6: each rank's block from where the vector lies: (latencies, moved)."""
    alpha, beta, q = machine.alpha, machine.beta, machine.q
    if stages == 1 or machine.s == 1 or q == 1:
        return beta.latency, beta.lines(m, machine.sharing(beta), nbytes)
    return alpha.latency + beta.latency, (beta.lines(m * q, 1, nbytes)
                                          + alpha.lines(m, q - 1, nbytes))


def tree_then_scatter(machine: Machine, m: float, nbytes: float, stages: int, n: int) -> Work:
    """The whole vector up the tree, then its blocks to their ranks."""
    whole = m * machine.ranks
    path, moved, waits = up_the_tree(machine, whole, nbytes, n)
    latency, read = scatter_stage(machine, m, nbytes, stages)
    return Work(path + latency + read, moved + read,
                tree_total(machine, whole, nbytes) + machine.ranks * read, waits + stages, 2)


def tiled_then_scatter(machine: Machine, m: float, nbytes: float, stages: int) -> Work:
    """The whole vector by hierarchical tiles, then its blocks to their ranks."""
    latency, moved, waits = hierarchical_slices(machine, m * machine.ranks, nbytes)
    extra, read = scatter_stage(machine, m, nbytes, stages)
    return Work(latency + extra + moved + read, moved + read, machine.ranks * (moved + read),
                waits + stages, 3)


@cost("reduce_scatter", "tree_one_stage")
def reduce_scatter_tree_one_stage(machine, m, nbytes, plan):
    """LHS 2.6: equation (3), then a one-stage scatter."""
    return tree_then_scatter(machine, m, nbytes, 1, plan.arity)


@cost("reduce_scatter", "tree_two_stage")
def reduce_scatter_tree_two_stage(machine, m, nbytes, plan):
    """LHS 2.6: equation (3), then a two-stage scatter."""
    return tree_then_scatter(machine, m, nbytes, 2, plan.arity)


@cost("reduce_scatter", "tiled_one_stage")
def reduce_scatter_tiled_one_stage(machine, m, nbytes, plan):
    """LHS 2.6: equation (10), then a one-stage scatter."""
    return tiled_then_scatter(machine, m, nbytes, 1)


@cost("reduce_scatter", "tiled_two_stage")
def reduce_scatter_tiled_two_stage(machine, m, nbytes, plan):
    """LHS 2.6: equation (10), then a two-stage scatter."""
    return tiled_then_scatter(machine, m, nbytes, 2)


# ---------------------------------------------------------------------- scan


def prefix(machine: Machine, m: float, nbytes: float) -> Work:
    """The last rank reads and reduces the vectors of all others."""
    last = machine.ranks - 1
    copy = machine.copy(m, nbytes)
    read = 0.0
    for other in range(last):
        link = machine.joined(last, other)
        d = min(last, machine.sharing(link))
        read += link.lines(m, d, nbytes) + link.reduced(m, d, nbytes)
    return Work(copy + machine.beta.latency + read, max(copy, read),
                last * copy + machine.ranks * read / 2, 1, 2)


@cost("scan", "direct")
def scan_direct(machine, m, nbytes, plan):
    """Every rank posts its vector, and reduces those of the ranks before it and its own."""
    return prefix(machine, m, nbytes)


@cost("exscan", "direct")
def exscan_direct(machine, m, nbytes, plan):
    """The same without its own."""
    return prefix(machine, m, nbytes)
