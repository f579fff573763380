"""A block for each rank: (all)gather, scatter, alltoall, reduce_scatter; and scans."""

from __future__ import annotations

import math

from smcoll.tuning.model.costs.parts import (
    hierarchical_slices,
    read_between,
    read_inside,
    reduced_before,
    tree_total,
    up_the_tree,
)
from smcoll.tuning.model.costs.work import Work, cost, everyone
from smcoll.tuning.model.machine import Machine
from smcoll.tuning.model.parameters import LINE

SHORT_CHUNK, LONG_CHUNK = 16 << 10, 128 << 10     # bytes
ROOM = 256 << 10            # bytes behind a cell of a stream, of all of a rank's streams together


def chunks_of(machine: Machine, nbytes: float, also_receives: bool = False) -> int:
    """In how many chunks a message travels (``coll/streams.pyx``)."""
    longest = nbytes if also_receives else max(nbytes / 4, SHORT_CHUNK)
    longest = min(longest, LONG_CHUNK, ROOM / max(machine.ranks - 1, 1))
    return max(1, math.ceil(nbytes / longest)) if nbytes else 1


def streamed(machine: Machine, sender: float, receiver: float, total: float, m: float) -> Work:
    """Messages through the streams: both sides work at once, a chunk apart."""
    chunks = chunks_of(machine, m * LINE)
    path = machine.beta.latency + max(sender, receiver) + min(sender, receiver) / chunks
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
    between, inside = read_between(machine, m * q, nbytes), read_inside(machine, m, nbytes)
    path = machine.ranks * copy + between + inside + machine.beta.latency + machine.alpha.latency
    total = machine.ranks * (copy + inside) + (machine.s - 1) * between
    return Work(path, machine.ranks * copy, total, 2)


@cost("alltoall", "direct", sectioned=False)
def alltoall_direct(machine, m, nbytes, plan):
    """Each rank copies a block into each stream, reads one from each, and copies its own."""
    moved = machine.ranks * machine.copy(m, nbytes) + machine.read_all(m, nbytes)
    return Work(machine.beta.latency + moved, moved, machine.ranks * moved, 1,
                chunks_of(machine, m * LINE, also_receives=True) * (machine.ranks - 1))


@cost("allgather", "direct")
def allgather_direct(machine, m, nbytes, plan):
    """Every rank posts its block, copies it for itself, and reads all others."""
    moved = 2 * machine.copy(m, nbytes) + machine.read_all(m, nbytes)
    return everyone(machine, moved, 1, 2)


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
    return alpha.latency + beta.latency, (read_between(machine, m * q, nbytes)
                                          + read_inside(machine, m, nbytes))


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


def prefix(machine: Machine, m: float, nbytes: float, exclusive: bool) -> Work:
    """As far as the last rank, which has most to do."""
    copy, read = machine.copy(m, nbytes), reduced_before(machine, m, nbytes, exclusive)
    return Work(copy + machine.beta.latency + read, max(copy, read),
                (machine.ranks - 1) * copy + machine.ranks * read / 2, 1, 2)


@cost("scan", "direct")
def scan_direct(machine, m, nbytes, plan):
    """Every rank posts its vector, and reduces those of the ranks before it and its own."""
    return prefix(machine, m, nbytes, exclusive=False)


@cost("exscan", "direct")
def exscan_direct(machine, m, nbytes, plan):
    """The same without its own."""
    return prefix(machine, m, nbytes, exclusive=True)


def chained_prefix(machine: Machine, m: float, nbytes: float, exclusive: bool) -> Work:
    """As far as the last rank; each reads what its neighbour has reduced, and copies its result.

    ``exclusive``: the last one has nothing to reduce.
    """
    copy = machine.copy(m, nbytes)
    links = [machine.joined(rank, rank - 1) for rank in range(1, machine.ranks)]
    reads = [link.lines(m, 1, nbytes) + link.reduced(m, 1, nbytes) for link in links]
    if exclusive:
        reads[-1] = links[-1].lines(m, 1, nbytes)
    path = copy + sum(reads) + len(links) * machine.beta.latency
    # Nobody waits for a higher rank: the next call waits for one step only.
    return Work(path, max(reads) + copy, machine.ranks * copy + sum(reads), len(links), 1, 1)


@cost("scan", "chain")
def scan_chain(machine, m, nbytes, plan):
    """Every rank reduces its vector onto what its neighbour has posted, and posts that."""
    return chained_prefix(machine, m, nbytes, exclusive=False)


@cost("exscan", "chain")
def exscan_chain(machine, m, nbytes, plan):
    """The same; the result is what the neighbour has posted."""
    return chained_prefix(machine, m, nbytes, exclusive=True)
