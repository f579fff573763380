from libc.stdint cimport int64_t, uint64_t

from smcoll.algos cimport MAX_ALGORITHMS
from smcoll.base.signature cimport COLLECTIVES


cdef struct Tally:
    uint64_t calls, nbytes
    uint64_t direct_bytes      # moved to or from other ranks' arrays without staging
    uint64_t timed_calls
    int64_t timed_ns


cdef class Statistics:
    cdef Tally carried_out[COLLECTIVES][MAX_ALGORITHMS]
    cdef Tally left_to_mpi[COLLECTIVES]


cdef int64_t started(Tally *tally, size_t nbytes) noexcept nogil
cdef int64_t went_on(Tally *tally, size_t nbytes) noexcept nogil
cdef void finished(Tally *tally, int64_t start, uint64_t direct_bytes) noexcept nogil
