"""Direct access, all arrays in shared heaps: LHS's own premise, without the copy into a region.

A call begins with an exchange in which all say where their arrays lie, and ends with one that says
that nobody uses them any more; a Bcast's root waits for its readers instead, where it has several.
Nothing is cut into sections.
"""

from __future__ import annotations

from smcoll.tuning.model.costs.parts import reduced_before
from smcoll.tuning.model.costs.work import Work, cost, everyone
from smcoll.tuning.model.machine import Machine


def reduced_slice(machine: Machine, m: float, nbytes: float) -> float:
    """LHS (8) as printed: the own slice of all vectors, where they lie."""
    part = m / machine.ranks
    return machine.copy(part, nbytes) + machine.reduce_all(part, nbytes, machine.ranks)


@cost("allreduce", "shared_heap", sectioned=False)
def allreduce_shared_heap(machine, m, nbytes, plan):
    """Each rank reduces its slice and writes it into every rank's result."""
    part = m / machine.ranks
    elsewhere = (machine.ranks - 1) * (machine.copy(part, nbytes)
                                       + machine.beta.rewritten(part, nbytes))
    return everyone(machine, reduced_slice(machine, m, nbytes) + elsewhere, 2, 1)


@cost("reduce", "shared_heap", sectioned=False)
def reduce_shared_heap(machine, m, nbytes, plan):
    """The same, into the root's result only."""
    moved = reduced_slice(machine, m, nbytes) + machine.beta.rewritten(
        m / machine.ranks, nbytes)
    return everyone(machine, moved, 2, 1)


@cost("bcast", "shared_heap", sectioned=False)
def bcast_shared_heap(machine, m, nbytes, plan):
    """LHS (4), one stage: everybody reads the root's array; the root waits until they have. Of two
    ranks each copies a half."""
    if machine.ranks == 2:
        half = m / 2
        return everyone(machine, max(machine.beta.lines(half, 1, nbytes), machine.copy(half, nbytes)
                                     + machine.beta.rewritten(half, nbytes)), 2, 1)
    read = machine.beta.lines(m, machine.sharing(machine.beta, machine.ranks - 1), nbytes)
    return Work(2 * machine.beta.latency + read, read, (machine.ranks - 1) * read, 2)


@cost("allgather", "shared_heap", sectioned=False)
def allgather_shared_heap(machine, m, nbytes, plan):
    """Everybody reads all others' blocks."""
    return everyone(machine, machine.copy(m, nbytes) + machine.read_all(m, nbytes), 2, 1)


@cost("reduce_scatter", "shared_heap", sectioned=False)
def reduce_scatter_shared_heap(machine, m, nbytes, plan):
    """Every rank reduces its block of all vectors."""
    return everyone(machine, machine.copy(m, nbytes) + machine.reduce_all(m, nbytes), 2, 1)


def prefix(machine: Machine, m: float, nbytes: float, exclusive: bool) -> Work:
    """As far as the last rank, which has most to do."""
    read = reduced_before(machine, m, nbytes, exclusive)
    return Work(2 * machine.beta.latency + read, read, machine.ranks * read / 2, 2)


@cost("scan", "shared_heap", sectioned=False)
def scan_shared_heap(machine, m, nbytes, plan):
    """Every rank reduces the vectors of the ranks before it and its own."""
    return prefix(machine, m, nbytes, exclusive=False)


@cost("exscan", "shared_heap", sectioned=False)
def exscan_shared_heap(machine, m, nbytes, plan):
    """The same without its own."""
    return prefix(machine, m, nbytes, exclusive=True)
