from smcoll.algos cimport Plan
from smcoll.reservation cimport MemberWithMemory
from smcoll.signature cimport COLLECTIVES
from smcoll.trees cimport Tree

cdef enum:
    MAX_CHOICES = 18      # a table's rows (tables.MOST_ROWS), and two more where arrays are shared


cdef struct Choice:
    size_t up_to               # largest nbytes this row is for
    Plan plan


cdef class MemberWithPlans(MemberWithMemory):
    cdef readonly object decisions
    cdef dict trees
    cdef dict plans            # per-call choices that were made before
    cdef int *scratch
    cdef Choice table[COLLECTIVES][MAX_CHOICES]
    cdef int choices[COLLECTIVES]

    cdef Tree tree(self, int radix)
    cdef Plan plan(self, int collective, decision)
    cdef Plan overridden(self, collective, size_t nbytes, algorithm, fan_in, fan_out,
                         section_bytes, pipelined, arity)
    cdef const Plan *choose(self, int collective, size_t nbytes) noexcept nogil
    cdef bint holds(self, const Plan *plan, size_t element) noexcept
    cdef const Plan *ordered_plan(self, collective, size_t nbytes, bint commutes) except NULL
