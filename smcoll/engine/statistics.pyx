"""How many calls of each kind there were, of how many bytes, and what they took."""

cimport cython
from libc.stdint cimport int64_t

from smcoll.algos cimport MAX_ALGORITHMS

from smcoll.algorithms import ALGORITHMS
from smcoll.algos import COLLECTIVE_NUMBERS, OBJECT_COLLECTIVES


@cython.final
cdef class Statistics:
    """One rank's counters of one communicator."""

    def rows(self):
        """Rows of calls, bytes and seconds per collective, algorithm and path.

        ``from_c``: how many of the calls came from C (``smcoll.h``, or a C library).
        Seconds are measured on every call above 64 KiB and on one in 64 below, and scaled; the
        longest one counts once, since most often something else took the core.
        ``direct_bytes``: what this rank read from and wrote to other ranks' arrays where they lie;
        all else was staged.
        """
        cdef Tally together
        rows = []
        for collective, names in ALGORITHMS.items():
            number = COLLECTIVE_NUMBERS[collective]
            for i, name in enumerate(names):
                add_row(rows, collective, name, "shared memory", &self.carried_out[number][i])
            add_row(rows, collective, "MPI's own", "MPI", &self.left_to_mpi[number])
        for title, number in OBJECT_COLLECTIVES.items():
            # They follow the algorithms of other collectives, which are no choice of their own.
            together = sum_of(self.carried_out[number])
            add_row(rows, title, "direct", "shared memory", &together)
        return rows


cdef Tally sum_of(const Tally *tallies):
    """All algorithms of a collective together."""
    cdef Tally result = tallies[0]
    cdef int i
    for i in range(1, MAX_ALGORITHMS):
        result.calls += tallies[i].calls
        result.nbytes += tallies[i].nbytes
        result.from_c += tallies[i].from_c
        result.direct_bytes += tallies[i].direct_bytes
        result.timed_calls += tallies[i].timed_calls
        result.timed_ns += tallies[i].timed_ns
        result.longest_ns = max(result.longest_ns, tallies[i].longest_ns)
    return result


cdef add_row(list rows, collective, algorithm, path, Tally *tally):
    cdef double seconds = 0
    cdef int64_t longest
    if tally.calls == 0:
        return
    if tally.timed_calls == 1:
        seconds = tally.timed_ns * 1e-9 * tally.calls
    elif tally.timed_calls > 1:
        # Another thread may be in a call, and between its two stores.
        longest = tally.longest_ns
        seconds = 1e-9 * longest + (
            1e-9 * max(tally.timed_ns - longest, 0) / (tally.timed_calls - 1) * (tally.calls - 1))
    rows.append({"collective": collective, "algorithm": algorithm, "path": path,
                 "calls": tally.calls, "from_c": tally.from_c, "bytes": tally.nbytes,
                 "seconds": seconds,
                 "direct_bytes": tally.direct_bytes})
