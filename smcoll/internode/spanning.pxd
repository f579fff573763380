from libc.stdint cimport uint64_t

from smcoll.coll.pipeline cimport Call, Plan
from smcoll.engine.engine cimport Engine
from smcoll.engine.failure cimport AcrossNodes
from smcoll.engine.node cimport NodeEngine
from smcoll.internode.notices cimport Notices
from smcoll.internode.span cimport Span


cdef class SpanningEngine(Engine):
    cdef readonly Span span
    cdef readonly NodeEngine node  # of this node's ranks
    cdef readonly Notices notices
    cdef AcrossNodes across        # what they know of the call over all nodes
    cdef uint64_t call             # its number
    cdef int most_on_a_node        # ranks
    cdef bint memory_agreed
    cdef readonly bint data_refused, streams_refused
    cdef int in_a_call             # 1 while this rank is in a call
    cdef bint is_later_stage       # the next call is one of a call of the user's that has begun
    cdef readonly bint closed
    cdef bint unusable             # failed or closed
    cdef tuple failure             # the error, and its text, that any further call raises

    cdef bint composes(self, int collective, Call *call) except -1
    cdef bint fits_lines(self, int collective, size_t nbytes) except -1
    cdef int memory_as_agreed(self) except -1
    cdef bint needs_memory(self, int collective, Call *call) except -1
    cdef int agree_on_memory(self, uint64_t signature) except -1
    cdef int begin(self, uint64_t signature, uint64_t total, bint synchronises=*) except -1
    cdef int lead(self) except -1
    cdef int lock(self) except -1
    cdef void begin_locked(self, uint64_t signature, uint64_t total)
    cdef int carry_out_stages(self, int collective, uint64_t signature, Call *call,
                              const Plan *plan, void *details) except -1
    cdef compose(self, int collective, Call *call, void *details)
    cdef end(self)
    cdef fail_everywhere(self, error)
