from smcoll.base.signature cimport COLLECTIVES
from smcoll.coll.pipeline cimport Plan
from smcoll.engine.reservation cimport MemberWithMemory
from smcoll.sync.trees cimport Tree

cdef enum:
    MAX_CHOICES = 18      # a table's rows (tables.MOST_ROWS), and two more where arrays are shared


cdef struct Choice:
    size_t up_to               # largest nbytes this row is for
    Plan plan


cdef class MemberWithPlans(MemberWithMemory):
    cdef readonly object decisions
    cdef dict trees
    cdef dict plans            # for operations that don't commute
    cdef int *scratch
    cdef Choice table[COLLECTIVES][MAX_CHOICES]
    cdef int choices[COLLECTIVES]

    cdef Tree tree(self, int radix)
    cdef Plan plan(self, int collective, decision)
    cdef const Plan *choose(self, int collective, size_t nbytes) noexcept nogil
    cdef bint holds(self, const Plan *plan, size_t element) noexcept
    cdef const Plan *ordered_plan(self, collective, size_t nbytes, bint commutes) except NULL
