"""How many calls of each kind there were, of how many bytes, and what they took."""

cimport cython
from libc.stdint cimport int64_t

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
        rows = []
        for collective, names in ALGORITHMS.items():
            number = COLLECTIVE_NUMBERS[collective]
            for i, name in enumerate(names):
                add_row(rows, collective, name, "shared memory", &self.carried_out[number][i])
            add_row(rows, collective, "MPI's own", "MPI", &self.left_to_mpi[number])
        for title, number in OBJECT_COLLECTIVES.items():
            # Reductions of objects are a gather or an allgather, and a fold.
            carrier = title.removesuffix("_objects")
            if carrier not in ("bcast", "gather", "scatter", "alltoall"):
                carrier = "allgather"
            for i, name in enumerate(ALGORITHMS[carrier]):
                add_row(rows, title, name, "shared memory", &self.carried_out[number][i])
        return rows


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
