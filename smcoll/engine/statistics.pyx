"""How many calls of each kind there were, of how many bytes, and what they took."""

from libc.stdint cimport int64_t, uint64_t

from smcoll.base.atomics cimport monotonic_ns

from smcoll.algorithms import ALGORITHMS
from smcoll.algos import COLLECTIVE_NUMBERS, OBJECT_COLLECTIVES

cdef enum:
    # Every call above this size is timed, and one in 64 below: two clock reads would be a visible
    # part of a short call.
    TIME_ALL_ABOVE = 65536


cdef class Statistics:
    """One rank's counters of one communicator."""

    def rows(self):
        """Rows of calls, bytes and seconds per collective, algorithm and path.

        Seconds are measured on every call above 64 KiB and on one in 64 below, and scaled.
        ``direct_bytes``: what this rank read from and wrote to other ranks' arrays where they lie;
        all else was staged.
        """
        rows = []
        for collective, names in ALGORITHMS.items():
            number = COLLECTIVE_NUMBERS[collective]
            for i, name in enumerate(names):
                add_row(rows, collective, name, "shared memory", &self.carried_out[number][i])
            add_row(rows, collective, "MPI's own", "MPI", &self.left_to_mpi[number])
        for title, number in OBJECT_COLLECTIVES.items():
            add_row(rows, title, "direct", "shared memory", &self.carried_out[number][0])
        return rows


cdef int64_t started(Tally *tally, size_t nbytes) noexcept nogil:
    """Count a call; when it began (ns), 0 where it is not timed."""
    tally.calls += 1
    tally.nbytes += nbytes
    if nbytes > TIME_ALL_ABOVE or (tally.calls & 63) == 1:
        return monotonic_ns()
    return 0


cdef int64_t went_on(Tally *tally, size_t nbytes) noexcept nogil:
    """A call's second stage: timed where the first one was."""
    if nbytes <= TIME_ALL_ABOVE and (tally.calls & 63) != 1:
        return 0
    tally.timed_calls -= 1
    return monotonic_ns()


cdef void finished(Tally *tally, int64_t start, uint64_t direct_bytes) noexcept nogil:
    tally.direct_bytes += direct_bytes
    if start != 0:
        tally.timed_calls += 1
        tally.timed_ns += monotonic_ns() - start


cdef add_row(list rows, collective, algorithm, path, Tally *tally):
    cdef double seconds = 0
    if tally.calls == 0:
        return
    if tally.timed_calls > 0:
        seconds = tally.timed_ns * 1e-9 / tally.timed_calls * tally.calls
    rows.append({"collective": collective, "algorithm": algorithm, "path": path,
                 "calls": tally.calls, "bytes": tally.nbytes, "seconds": seconds,
                 "direct_bytes": tally.direct_bytes})
