"""Times of all algorithms at all sizes, and where the fastest one changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from smcoll.tuning import select
from smcoll.tuning.model.costs import COSTS, Plan, predict
from smcoll.tuning.model.machine import Machine
from smcoll.tuning.model.parameters import UnknownParameter


def plan_for(machine: Machine, config, section_bytes: int = 0, fan_in: int = 0,
             fan_out: int = 0) -> Plan:
    """A plan with a communicator's settings; radices and section as given, else by default."""
    config = config.settled(machine.oversubscribed)
    radix = select.default_radix(machine.ranks, machine.oversubscribed)
    return Plan(
        fan_in=fan_in or config.fan_in or radix, fan_out=fan_out or config.fan_out or radix,
        section_bytes=min(section_bytes or config.segment_size, config.segment_size),
        pipelined=config.pipeline, inline_size=config.internals.inline_size,
        rooted_inline_size=config.internals.rooted_inline_size)


def algorithms_of(collective: str, heap: bool = False) -> list[str]:
    """Names that have a cost function; ``heap``: with direct access to arrays in shared heaps."""
    return [name for kind, name in COSTS
            if kind == collective and (heap or name != select.SHARED_HEAP)]


def microseconds(collective: str, name: str, machine: Machine, nbytes: int,
                 plan: Plan) -> tuple[float | None, str]:
    """(µs, "") or (None, which parameter is not known)."""
    try:
        return predict(collective, name, machine, nbytes, plan) / 1000, ""
    except UnknownParameter as error:
        return None, str(error)


def crossover(first: Callable[[int], float | None], second: Callable[[int], float | None],
              sizes: Sequence[int]) -> int | None:
    """The size from which on ``second`` is the faster one: found by halving between ``sizes``.

    None where it is not faster at the largest size, or is so at the smallest already.
    """
    def gain(nbytes: int) -> float | None:
        one, other = first(nbytes), second(nbytes)
        return None if one is None or other is None else one - other

    known = [(nbytes, value) for nbytes in sizes if (value := gain(nbytes)) is not None]
    if not known or known[-1][1] <= 0 or known[0][1] > 0:
        return None
    low = max(nbytes for nbytes, value in known if value <= 0)
    high = min(nbytes for nbytes, _ in known if nbytes > low)
    while high - low > max(8, low // 64):
        middle = (low + high) // 2
        if gain(middle) > 0:
            high = middle
        else:
            low = middle
    return high


def fastest(times: Iterable[tuple[str, float | None]]) -> str | None:
    """The name with the least known time."""
    known = [(time, name) for name, time in times if time is not None]
    return min(known)[1] if known else None


def crossovers(collective: str, names: Sequence[str], time_of: Callable[[str, int], float | None],
               sizes: Sequence[int]) -> list[dict]:
    """Where the fastest algorithm changes: rows ``{collective, from, to, bytes}``."""
    rows = []
    best = [fastest((name, time_of(name, nbytes)) for name in names) for nbytes in sizes]
    for position, (old, new) in enumerate(itertools.pairwise(best)):
        if old is None or new is None or old == new:
            continue
        at = crossover(lambda nbytes, name=old: time_of(name, nbytes),
                       lambda nbytes, name=new: time_of(name, nbytes),
                       sizes[position:position + 2])
        rows.append({"collective": collective, "from": old, "to": new, "bytes": at})
    return rows
