cimport cython
from smcoll.base.signature cimport COLLECTIVES
from smcoll.coll.pipeline cimport Plan
from smcoll.sync.trees cimport Tree

cdef enum:
    MAX_CHOICES = 18      # a table's rows (tables.MOST_ROWS), and two more where arrays are shared


cdef struct Choice:
    size_t up_to               # largest nbytes this row is for
    Plan plan


@cython.final
cdef class Plans:
    cdef readonly dict decisions
    cdef int size
    cdef size_t segment_size   # bytes
    cdef int segments          # of a bank
    cdef dict trees
    cdef dict ordered          # plans for operations that don't commute
    cdef Choice table[COLLECTIVES][MAX_CHOICES]
    cdef int choices[COLLECTIVES]

    cdef Tree tree(self, int radix)
    cdef Plan plan(self, int collective, decision)
    cdef const Plan *choose(self, int collective, size_t nbytes) noexcept nogil
    cdef const Plan *choose_in_order(self, collective, size_t nbytes, bint commutes) except NULL
