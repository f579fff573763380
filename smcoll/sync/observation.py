"""Looking at a mapping from outside: where each rank is, and whom it waits for.

Reads only, by ``pread``, so that it never makes a page of the segment, and takes nothing that it
reads for an address. Needs nothing of the ranks, which may hang, be stopped or dead.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from dataclasses import asdict, dataclass

from smcoll.segment import (
    PAGE,
    PUBLISHED_BYTES,
    STATUS_BYTES,
    WAITS_FOR_MPI,
    places_to_observe,
    published_fields,
    status_fields,
)
from smcoll.sync.calls import describe_call, in_words, is_fallback

_QUERY = "hhqqi"
MPI = "MPI"


@dataclass(frozen=True)
class RankView:
    """What one rank had published at a moment."""

    rank: int
    alive: bool
    pid: int                   # in this process's PID namespace; 0: dead, or not visible here
    call: int                  # number of its current or last call of the program's
    what: str                  # that call in words
    state: str                 # in call, waiting, outside, dead, left, gave up
    awaits: int | str | None   # a rank, "MPI", or None when not in a long wait
    waiting_seconds: float

    def in_words(self) -> str:
        """The state, for people."""
        if self.awaits is None:
            return self.state
        whom = self.awaits if self.awaits == MPI else f"rank {self.awaits}"
        return f"waiting for {whom} for {self.waiting_seconds:.1f} s"


class Observation:
    """The mapping behind an open descriptor. OSError unless it is one of smcoll's.

    The descriptor stays the caller's: in a rank itself it must be the mapping's own, since closing
    another one of that file drops the lock by which the others know that this rank is alive.
    """

    def __init__(self, descriptor: int, own_rank: int | None = None):
        self.descriptor = descriptor
        self.own_rank = own_rank           # the kernel does not tell a process of its own locks
        places = places_to_observe(os.pread(descriptor, PAGE, 0))
        if places["total"] != os.fstat(descriptor).st_size:
            raise OSError("the size of a segment is not that of its header")
        self.places = places
        self.title = places["title"]       # the communicator's name
        self.ranks = places["ranks"]

    def look(self) -> list[RankView]:
        """Every rank, now."""
        return [self._rank(rank) for rank in range(self.ranks)]

    def _rank(self, rank: int) -> RankView:
        at = self.places["first"] + rank * self.places["stride"]
        status = status_fields(os.pread(self.descriptor, STATUS_BYTES, at))
        call, awaited = status["current_call"], status["awaited"]
        pid = self._holder(rank)
        awaits: int | str | None = None
        if status["left"]:
            state = "left"
        elif pid is None:
            state = "dead"
        elif status["poison"]:
            state = "gave up"
        elif not status["busy"]:
            state = "outside"
        elif awaited == WAITS_FOR_MPI or 0 < awaited <= self.ranks:
            state, awaits = "waiting", MPI if awaited == WAITS_FOR_MPI else awaited - 1
        else:
            state = "in call"
        waited = (time.clock_gettime_ns(time.CLOCK_MONOTONIC) - status["waiting_since"]) * 1e-9
        number, what = self._call(at, call)
        return RankView(rank, pid is not None, pid or 0, number, what, state, awaits,
                        round(max(waited, 0.0), 3) if awaits is not None else 0.0)

    def _call(self, status_at: int, call: int) -> tuple[int, str]:
        """Number and name of a rank's last call, as users count and name them."""
        place = status_at + self.places["ring"] + (
            call % self.places["ring_entries"] * PUBLISHED_BYTES)
        entry = published_fields(os.pread(self.descriptor, PUBLISHED_BYTES, place))
        if entry["call"] != call or entry["signature"] == 0:
            return 0, "no collective yet"
        return entry["number"], describe_call(entry["signature"], entry["nbytes"]) + (
            " through MPI" if is_fallback(entry["signature"]) else "")

    def _holder(self, rank: int) -> int | None:
        """The process that holds the lock of ``rank``: its pid, 0 if not visible; None: nobody."""
        if rank == self.own_rank:
            return os.getpid()
        query = struct.pack(_QUERY, fcntl.F_WRLCK, os.SEEK_SET, rank, 1, 0)
        answer = struct.unpack(_QUERY, fcntl.fcntl(self.descriptor, fcntl.F_GETLK, query))
        return None if answer[0] == fcntl.F_UNLCK else max(answer[4], 0)


def missing(views: list[RankView]) -> list[RankView]:
    """Ranks that others wait for, directly or not, and that wait for nobody themselves."""
    awaited = {view.awaits for view in views}
    return [view for view in views if view.rank in awaited and view.awaits is None]


def summary(views: list[RankView]) -> str:
    """Who waits for whom, in a sentence; empty when nobody waits."""
    waiting = [view.rank for view in views if view.awaits is not None]
    if not waiting:
        return ""
    culprits = missing(views)
    if not culprits:
        return f"{in_words(waiting)} wait for each other or for MPI"
    names = "; ".join(f"rank {view.rank}, {view.state}, call {view.call}: {view.what}"
                      for view in culprits)
    verb = "waits" if len(waiting) == 1 else "wait"
    return f"{in_words(waiting)} {verb} in the end for {names}"


def as_record(view: RankView) -> dict:
    """For JSON."""
    return asdict(view)
