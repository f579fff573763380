"""How far two cores are from each other: a cache line there and back, in ns.

Two cores under one cache exchange lines fast; those of two sockets or chiplets don't, and virtual
cores change places within seconds. What is fast differs between the two, so whatever is measured
says in which state the cores were.
"""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Iterable, Sequence

from smcoll.tuning import probe

NEAR_BELOW = 200.0  # ns; under one cache 50 to 130 were seen,
FAR_FROM = 380.0  # and on cores without a common one 480 to 720
ROUNDS, BLOCKS = 200, 5
MOST_PAIRS = 7


def state_of(ns: float | None) -> str:
    """``near``, ``between``, ``far``, or ``unknown``."""
    if ns is None:
        return "unknown"
    return "near" if ns < NEAR_BELOW else "far" if ns >= FAR_FROM else "between"


def round_trip(cpu: int, other: int) -> float | None:
    """ns for a line from one CPU to the other and back; None where this process may not run there.

    The median of a few hundred rounds, by two threads bound there for the time. Who else runs on
    these CPUs disturbs it.
    """
    words = bytearray(4096)
    blocks: list[float] = []
    refused: list[OSError] = []
    ready = threading.Barrier(2)

    def bounce(me: int, own: int) -> None:
        try:
            os.sched_setaffinity(0, {own})
        except OSError as error:
            refused.append(error)
        ready.wait()
        if not refused:
            found = probe.bounce(words, me, ROUNDS, BLOCKS)
            if me == 0:
                blocks.extend(found)

    threads = [threading.Thread(target=bounce, args=pair) for pair in ((0, cpu), (1, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.median(blocks) if blocks else None


def farthest(cpus: Iterable[int]) -> float | None:
    """The longest way from the first of these CPUs to one of the others; None for a single one."""
    found = [ns for _, _, ns in pairs(sorted(set(cpus))) if ns is not None]
    return max(found, default=None)


def pairs(cpus: Sequence[int]) -> list[tuple[int, int, float | None]]:
    """(CPU, other CPU, ns) from the first one to the others, of many to some evenly chosen ones."""
    others = cpus[1:]
    if len(others) > MOST_PAIRS:
        others = [others[round(i * (len(others) - 1) / (MOST_PAIRS - 1))]
                  for i in range(MOST_PAIRS)]
    return [(cpus[0], other, round_trip(cpus[0], other)) for other in others]
