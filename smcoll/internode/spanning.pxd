from libc.stdint cimport uint64_t

from smcoll.coll.pipeline cimport Call, Plan
from smcoll.engine.engine cimport Engine
from smcoll.internode.span cimport Span


cdef class SpanningEngine(Engine):
    # The engine of a communicator whose ranks are on several nodes. `team` has its ranks and no
    # memory; `node` is the engine of this node's ranks.
    cdef readonly Span span
    cdef readonly Engine node
    cdef bint memory_agreed
    cdef int in_a_call             # 1 while this rank is in a call

    cdef bint composes(self, int collective, Call *call) except -1
    cdef bint fits_lines(self, int collective, size_t nbytes) except -1
    cdef int memory_as_agreed(self) except -1
    cdef bint needs_memory(self, int collective, Call *call) except -1
    cdef int agree_on_memory(self, uint64_t signature) except -1
    cdef int begin(self, uint64_t signature, uint64_t total) except -1
    cdef int lock(self) except -1
    cdef void begin_locked(self, uint64_t signature, uint64_t total)
    cdef compose(self, int collective, Call *call, void *details)
    cdef end(self)
    cdef fail_everywhere(self, error)
