"""Barrier, Bcast and Reduce."""

from __future__ import annotations

from smcoll.tuning.model import lhs
from smcoll.tuning.model.costs import parts
from smcoll.tuning.model.costs.work import Work, cost, everyone, other_flags
from smcoll.tuning.model.machine import Machine


@cost("barrier", "all_read", sectioned=False)
def barrier_all_read(machine, m, nbytes, plan):
    """All flags are written at once; a rank reads those of all others one after the other.

    It waits for the first, the others' lines are there then: one access each.
    """
    return everyone(machine, 0.0, 1, 1)


@cost("barrier", "tree", sectioned=False)
def barrier_tree(machine, m, nbytes, plan):
    """Fan-in and fan-out of flags (GS 3.4): the latencies along both trees."""
    ready, _, up = parts.fan_in_tree(machine, 0, 0, plan.fan_in)
    done, _, down = parts.fan_out_tree(machine, 0, 0, plan.fan_out, 0.0)
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


@cost("bcast", "fan_out")
def bcast_fan_out(machine, m, nbytes, plan):
    """GS 3.3: the root copies in, children copy out, level by level."""
    done, moved, depth = parts.fan_out_tree(machine, m, nbytes, plan.fan_out,
                                            machine.copy(m, nbytes))
    return Work(max(done), max(moved), sum(moved), depth, chained=1)


@cost("bcast", "n_ary")
def bcast_n_ary(machine, m, nbytes, plan):
    """LHS 2.2: an n-ary tree, between domains first; each level is copied in and read."""
    copy, readers = machine.copy(m, nbytes), machine.at_once(plan.arity - 1)
    path, read, waits = copy, 0.0, 0
    for link, count in ((machine.beta, machine.s), (machine.alpha, machine.q)):
        steps = lhs.ceil_log(count, plan.arity)
        path += steps * (link.latency + link.lines(m, readers, nbytes))
        read = max(read, link.lines(m, readers, nbytes) if steps else 0.0)
        waits += steps
    # Who passes it on copies it for itself as well; every n-th rank does, the root only copies in.
    passing = max(0.0, machine.ranks / plan.arity - 1)
    return Work(path, max(copy, read + copy if waits > 1 else read),
                copy + (machine.ranks - 1) * read + passing * copy, waits, chained=1)


@cost("bcast", "one_stage")
def bcast_one_stage(machine, m, nbytes, plan):
    """Equation (4), second form, and the root's copy-in."""
    copy, read = machine.copy(m, nbytes), parts.one_stage(machine, m, nbytes)
    total = copy + (machine.ranks - 1) * read
    return Work(copy + machine.beta.latency + read, max(copy, read), total, 1)


@cost("bcast", "two_stage")
def bcast_two_stage(machine, m, nbytes, plan):
    """Equation (4), first form; socket masters pass on through their own regions."""
    copy = machine.copy(m, nbytes)
    between, inside = parts.read_between(machine, m, nbytes), parts.read_inside(machine, m, nbytes)
    path = copy + between + inside
    path += (machine.s > 1) * machine.beta.latency + (machine.q > 1) * machine.alpha.latency
    master = between + copy
    total = copy + (machine.s - 1) * master + (machine.ranks - machine.s) * inside
    return Work(path, max(master, inside), total, (machine.s > 1) + (machine.q > 1), 2,
                chained=1)


@cost("bcast", "scatter_allgather")
def bcast_scatter_allgather(machine, m, nbytes, plan):
    """Each rank reads its part of the root's region and posts it; then all read all parts."""
    part = m / machine.ranks
    copy = machine.copy(m, nbytes)
    read = machine.beta.lines(part, machine.sharing(machine.beta), nbytes)
    rest = machine.copy(part, nbytes) + machine.read_all(part, nbytes)
    path = copy + 2 * machine.beta.latency + read + rest
    return Work(path, max(copy, read + rest), copy + machine.ranks * (read + rest), 2, 2)


@cost("reduce", "fan_in")
def reduce_fan_in(machine, m, nbytes, plan):
    """GS 3.2: leaves copy in, parents reduce, the root into the user's buffer."""
    ready, moved, depth = parts.fan_in_tree(machine, m, nbytes, plan.fan_in)
    return Work(ready[0], max(moved), sum(moved), depth)


@cost("reduce", "reduce_scatter_gather")
def reduce_scatter_gather(machine, m, nbytes, plan):
    """Pairwise reduce-scatter, then the root alone reads all slices."""
    latency, moved, waits = parts.halving(machine, m, nbytes)
    n = 1 << lhs.floor_log(machine.ranks)
    gathered = machine.copy(m / n, nbytes) + sum(
        machine.joined(0, other).lines(m / n, 1, nbytes) for other in range(1, n))
    return Work(latency + machine.beta.latency + moved + gathered, moved + gathered,
                machine.ranks * moved + gathered, waits + 1, 3)


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
    moved = parts.own_slice(machine, m, nbytes, machine.ranks)
    return gathered_at_root(machine, moved, m / machine.ranks, nbytes)


@cost("reduce", "tiled_cyclic")
def reduce_tiled_cyclic(machine, m, nbytes, plan):
    """The same with sources by turns."""
    moved = parts.own_slice(machine, m, nbytes, machine.q)
    return gathered_at_root(machine, moved, m / machine.ranks, nbytes)


@cost("reduce", "n_ary")
def reduce_n_ary(machine, m, nbytes, plan):
    """Equation (3), and the copy-in."""
    path, moved, waits = parts.up_the_tree(machine, m, nbytes, plan.arity, posts=False)
    return Work(path, moved, parts.tree_total(machine, m, nbytes), waits)


@cost("reduce", "tiled_hierarchical")
def reduce_tiled_hierarchical(machine, m, nbytes, plan):
    """Equation (10), and the root gathers the slices of its domain."""
    latency, moved, waits = parts.hierarchical_slices(machine, m, nbytes)
    gathered = (machine.q - 1) * machine.alpha.lines(m / machine.q, 1, nbytes)
    return Work(latency + machine.alpha.latency + moved + gathered, moved + gathered,
                machine.ranks * moved + gathered, waits + 1, 3)
