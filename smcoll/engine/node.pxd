from libc.stdint cimport int64_t, uint64_t

from smcoll.buffers.messages cimport Messages
from smcoll.coll.pipeline cimport Call, Plan
from smcoll.engine.call cimport CallProtocol
from smcoll.engine.engine cimport Engine
from smcoll.engine.exchanges cimport Exchanges
from smcoll.engine.failure cimport FailureDetector
from smcoll.engine.fallback cimport Fallback
from smcoll.engine.learning cimport Learner
from smcoll.engine.peer_memory cimport PeerMemory
from smcoll.sync.team cimport Team
from smcoll.sync.waiting cimport condition


cdef int run_collective(Call *call, int collective) noexcept nogil


cdef class NodeEngine(Engine):
    cdef Team *team            # the member's
    cdef FailureDetector failures
    cdef CallProtocol protocol
    cdef PeerMemory peers
    cdef Exchanges exchanges
    cdef Fallback fallback
    cdef Learner learner       # None: what calls follow is what the tables say

    cdef int64_t let_learn(self, int collective, const Call *call, bint begins) except -1 nogil
    cdef int lead(self, int collective, size_t nbytes) except -1

    # A call over several nodes, and its stages.
    cdef int begin_synchronising(self) except -1
    cdef int carry_out_stage(self, int collective, uint64_t signature, uint64_t nbytes,
                             Call *call, const Plan *plan, void *details) except -1
    cdef int exchange_stage(self, uint64_t signature, Messages messages) except -1
    cdef int wait_outside_stage(self, condition holds, void *context) except -1
