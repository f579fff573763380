cimport cython
from libc.stdint cimport int64_t, uint64_t

from smcoll.algos cimport MAX_ALGORITHMS
from smcoll.base.atomics cimport monotonic_ns
from smcoll.base.signature cimport COLLECTIVES


cdef enum:
    # Every call above this size is timed, and one in 64 below: two clock reads would be a visible
    # part of a short call.
    TIME_ALL_ABOVE = 65536


cdef struct Tally:
    uint64_t calls, nbytes
    uint64_t from_c            # of the calls: by a C library, or other compiled code
    uint64_t direct_bytes      # moved to or from other ranks' arrays without staging
    uint64_t timed_calls
    int64_t timed_ns
    int64_t longest_ns         # of the timed calls


@cython.final
cdef class Statistics:
    cdef Tally carried_out[COLLECTIVES][MAX_ALGORITHMS]
    cdef Tally left_to_mpi[COLLECTIVES]


cdef inline int64_t started(Tally *tally, size_t nbytes) noexcept nogil:
    """Count a call; when it began (ns), 0 where it is not timed."""
    tally.calls += 1
    tally.nbytes += nbytes
    if nbytes > TIME_ALL_ABOVE or (tally.calls & 63) == 1:
        return monotonic_ns()
    return 0


cdef inline int64_t went_on(Tally *tally, size_t nbytes) noexcept nogil:
    """A call's second stage: timed where the first one was."""
    if nbytes <= TIME_ALL_ABOVE and (tally.calls & 63) != 1:
        return 0
    tally.timed_calls -= 1
    return monotonic_ns()


cdef inline void finished(Tally *tally, int64_t start, uint64_t direct_bytes) noexcept nogil:
    tally.direct_bytes += direct_bytes
    cdef int64_t taken
    if start != 0:
        taken = monotonic_ns() - start
        tally.timed_calls += 1
        tally.timed_ns += taken
        tally.longest_ns = max(tally.longest_ns, taken)
