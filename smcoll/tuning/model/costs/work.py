"""What a call takes: the work of one section, made from an algorithm's function, put in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from smcoll.base.internals import Internals
from smcoll.tuning.model.machine import Machine, lines

HEADER = 32         # bytes of a flag line before its payload


@dataclass(frozen=True)
class Plan:
    """How a call is done; see smcoll.tuning.select.Decision and Config."""

    fan_in: int
    fan_out: int
    section_bytes: int = 64 << 10
    pipelined: bool = True
    inline_size: int = Internals.inline_size
    rooted_inline_size: int = Internals.rooted_inline_size
    arity: int = Internals.arity


@dataclass(frozen=True)
class Work:
    """What one section of a call takes, in ns.

    ``path``: from the first rank's start to the last one's end. ``busiest``: data moved by the rank
    that moves most. ``total``: by all ranks. ``waits``: dependent steps in which somebody waits for
    somebody; ``chained``: those of them that the next call waits for (none: all), as where calls
    follow each other and roots rotate. ``phases``: parts of a section on the rank that has most.
    """

    path: float
    busiest: float
    total: float
    waits: int
    phases: int = 1
    chained: int | None = None


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
    ("scan", "chain"): "rooted_inline_size", ("exscan", "chain"): "rooted_inline_size",
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
# values come from, what is sent, what is received. In a reduction each has the message's size; a
# Bcast sends and receives in one; blocks for each of p ranks make some of them larger.
BUFFERS = {
    "bcast": lambda p: 3.0, "gather": lambda p: 3.0 + p, "allgather": lambda p: 3.0 + p,
    "scatter": lambda p: 3.0 * p + 1, "reduce_scatter": lambda p: 3.0 * p + 1,
    "alltoall": lambda p: 4.0 * p,
}
OF_A_REDUCTION = 4.0


def footprint(collective: str, nbytes: int, machine: Machine) -> float:
    """Size of a reduction's message with as many bytes in use. Ranks on a core share its caches."""
    buffers = BUFFERS[collective](machine.ranks) if collective in BUFFERS else OF_A_REDUCTION
    return nbytes * buffers / OF_A_REDUCTION * machine.ranks / machine.running


def predict(collective: str, name: str, machine: Machine, nbytes: int, plan: Plan) -> float:
    """ns of a call. KeyError for an unknown algorithm, UnknownParameter where one is missing."""
    key = collective, name
    function = COSTS[key]
    evicted = machine.parameters.evicted
    return _call(key, function, machine, nbytes, plan) + (
        lines(nbytes) * evicted.at(footprint(collective, nbytes, machine))
        if evicted is not None and nbytes else 0.0)


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
    their work counts, and each dependent step that the next call waits for costs a turn of the run
    queue.
    """
    parameters = machine.parameters
    call = parameters.call_overhead(collective)
    steps = 0.0 if inline else work.phases * sections * parameters.step
    if not machine.oversubscribed:
        return call + steps + work.path + (sections - 1) * (
            work.busiest if pipelined else work.path)
    share = machine.ranks / machine.cores
    turns = work.waits if work.chained is None else work.chained
    turns += (sections - 1) * (1 if pipelined else work.waits)
    return (share * (call + steps) + sections * work.total / machine.cores
            + turns * share * parameters.turn())


def everyone(machine: Machine, moved: float, waits: int, phases: int) -> Work:
    """All ranks do the same at the same time, with ``waits`` exchanges of everybody's flags."""
    busy = moved + waits * other_flags(machine)
    return Work(busy + waits * machine.beta.latency, busy, machine.ranks * busy, waits, phases)


def other_flags(machine: Machine) -> float:
    """Reading everybody's flags beyond the one that is waited for: they are there then."""
    return max(0.0, sum(machine.others_at(tier) * tier.link.latency for tier in machine.tiers)
               - machine.beta.latency)
