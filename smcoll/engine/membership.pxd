from libc.stdint cimport int64_t, uint64_t

from smcoll.segment cimport Mapping
from smcoll.sync.domains cimport Domains
from smcoll.sync.team cimport Team
from smcoll.sync.waiting cimport Attendant


cdef class Member:
    cdef Team team
    cdef Mapping mapping
    cdef Attendant attendant
    cdef readonly Domains domains
    cdef readonly object config
    cdef readonly bint closed
    cdef object budget
    cdef object call_outside       # callable: the call that waits for other nodes, in words
    cdef int instruction_set
    cdef uint64_t start        # where all counters began
    cdef bint spans                # these are a node's ranks, of a communicator over several:
    cdef uint64_t spanning_call    # the call over all nodes that they are in
    cdef uint64_t uncompleted      # a call that this rank began, and left without the others
    cdef bint continues        # the next call is a later stage of one that the peers are in
    cdef object failure
    cdef bint unusable         # failed or closed
    cdef bint warned
    cdef int64_t looked_at_all     # when a wait last looked at all ranks' lives (monotonic ns)
    cdef object roles          # of other nodes' leaders, by the rank, in words: for messages
    cdef list names            # of a node's ranks, as the communicator that spans it numbers them
    cdef double patience       # times the set timeout: who waits for a waiting rank gives up later
    cdef object outside        # ranks of another node that this one waits for
    cdef object __weakref__

    cdef int enter(self) except -1
    cdef int enter_without_gil(self) noexcept nogil
    cdef int explain_refusal(self, int status) except -1
    cdef void take_gil_back(self) noexcept
    cdef int leave(self, int status) except -1
    cdef int leave_for_good(self, int status) except -1
    cdef void release_gil_if_long(self, size_t nbytes) noexcept
    cdef uint64_t user_call(self) noexcept
    cdef uint64_t at_latest_now(self, uint64_t since) noexcept
    cdef bint left_a_call(self) noexcept
    cdef bint concerns_us(self, int rank, int awaited)
    cdef bint has_left(self, int rank)
    cdef bint has_died(self, int rank)
    cdef bint owes_us(self, int rank, int awaited)
