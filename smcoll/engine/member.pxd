cimport cython
from libc.stdint cimport uint64_t

from smcoll.segment cimport Mapping
from smcoll.sync.domains cimport Domains
from smcoll.sync.team cimport Team
from smcoll.sync.waiting cimport Attendant


@cython.final
cdef class Member:
    cdef Team team
    cdef Mapping mapping
    cdef Attendant attendant
    cdef readonly Domains domains
    cdef readonly object config
    cdef object budget
    cdef int instruction_set
    cdef uint64_t start        # where all counters began
    cdef const void **sources  # the operands of one call, from every rank
    cdef bint closed
    cdef bint unusable         # failed or closed
