from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from smcoll.base.atomics cimport load_acquire
from smcoll.comm.c_api cimport smcoll_engine
from smcoll.interpose.comparison cimport CallClass

cdef enum:
    BUCKETS = 1024             # of handles; a power of two


# What is known of a communicator's handle.
cdef struct Entry:
    uintptr_t comm
    Entry *next
    Entry *next_free           # of those that are not in use
    int rank, size
    int64_t calls              # so far, all left to MPI, until the engine is made
    bint decided
    int failure                # code of the error that making the engine ended in, here
    int in_use                 # a call without the GIL is on its way
    bint took_part             # the last call reached the other ranks
    PyObject *python           # the smcoll communicator, once decided; NULL: all calls are MPI's
    smcoll_engine *engine
    CallClass *classes         # FUNCTIONS x SIZE_CLASSES; NULL: its calls are not compared


cdef Entry *buckets[BUCKETS]

cdef Entry *enter(uintptr_t comm) noexcept nogil
cdef void decide(Entry *entry) noexcept with gil


cdef inline int bucket_of(uintptr_t handle) noexcept nogil:
    return <int> ((handle ^ handle >> 6 ^ handle >> 16) & (BUCKETS - 1))


cdef inline Entry *first_of(uintptr_t comm) noexcept nogil:
    return <Entry *> load_acquire(<const uint64_t *> &buckets[bucket_of(comm)])


cdef inline Entry *find(uintptr_t comm) noexcept nogil:
    """The communicator's entry, if it has one. Without a lock: what is found is right.

    Pairs with the release in ``enter``. An entry's memory is used again for other entries only, so
    who walks along while another thread frees its communicator may come into another list and find
    nothing, never what is no entry.
    """
    cdef Entry *entry = first_of(comm)
    while entry != NULL and entry.comm != comm:
        entry = <Entry *> load_acquire(<const uint64_t *> &entry.next)
    return entry
