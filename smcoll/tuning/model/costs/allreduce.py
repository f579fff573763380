"""Allreduce."""

from __future__ import annotations

from smcoll.tuning.model import lhs
from smcoll.tuning.model.costs import parts
from smcoll.tuning.model.costs.work import Work, cost, everyone
from smcoll.tuning.model.machine import Machine


@cost("allreduce", "all_read")
def allreduce_all_read(machine, m, nbytes, plan):
    """Every rank copies its vector in and reduces all of them: one dependent step."""
    moved = machine.copy(m, nbytes) + machine.reduce_all(m, nbytes, machine.ranks)
    return everyone(machine, moved, 1, 2)


@cost("allreduce", "fan_in_fan_out")
def allreduce_fan_in_fan_out(machine, m, nbytes, plan):
    """GS 3.1: fan-in to rank 0, fan-out from it."""
    ready, up, height = parts.fan_in_tree(machine, m, nbytes, plan.fan_in, posts=True)
    done, down, depth = parts.fan_out_tree(machine, m, nbytes, plan.fan_out,
                                           machine.copy(m, nbytes))
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
    latency, moved, waits = parts.halving(machine, m, nbytes)
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
    moved = parts.own_slice(machine, m, nbytes, machine.ranks, posted=False)
    moved = with_allgather(machine, moved, m / machine.ranks, nbytes)
    return everyone(machine, moved, 2, 3)


@cost("allreduce", "tiled_cyclic")
def allreduce_tiled_cyclic(machine, m, nbytes, plan):
    """The same with sources by turns."""
    moved = parts.own_slice(machine, m, nbytes, machine.q)
    moved = with_allgather(machine, moved, m / machine.ranks, nbytes)
    return everyone(machine, moved, 2, 3)


def broadcast_after(machine: Machine, m: float, nbytes: float) -> tuple[float, float]:
    """LHS (4) from a region in which the result lies already: (latencies, moved)."""
    two = machine.beta.latency + machine.alpha.latency
    two_moved = parts.read_between(machine, m, nbytes) + parts.read_inside(machine, m, nbytes)
    one_moved = parts.one_stage(machine, m, nbytes)
    if two + two_moved < machine.beta.latency + one_moved:
        return two, two_moved
    return machine.beta.latency, one_moved


@cost("allreduce", "tiled_hierarchical")
def allreduce_tiled_hierarchical(machine, m, nbytes, plan):
    """Equation (11), and the copy-in."""
    latency, moved, waits = parts.hierarchical_slices(machine, m, nbytes)
    extra, read = broadcast_after(machine, m, nbytes)
    return Work(latency + extra + moved + read, moved + read, machine.ranks * (moved + read),
                waits + 1, 3)


@cost("allreduce", "reduce_broadcast")
def allreduce_reduce_broadcast(machine, m, nbytes, plan):
    """Equation (5), and the copy-in."""
    path, moved, waits = parts.up_the_tree(machine, m, nbytes, plan.arity)
    latency, read = broadcast_after(machine, m, nbytes)
    return Work(path + latency + read, moved + read,
                parts.tree_total(machine, m, nbytes) + (machine.ranks - 1) * read, waits + 1, 2)


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
        moved += 2 * alpha.lines(m, machine.at_once(excess), nbytes)
        latency += 2 * alpha.latency
    moved += machine.copy(m, nbytes)
    waits = len(steps) + 2 * bool(excess)
    return Work(latency + moved, moved, machine.ranks * moved, waits, 2)
