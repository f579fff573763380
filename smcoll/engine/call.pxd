cimport cython
from libc.stdint cimport int64_t, uint64_t

from smcoll.engine.failure cimport FailureDetector
from smcoll.engine.member cimport Member
from smcoll.sync.team cimport Team
from smcoll.sync.waiting cimport condition


@cython.final
cdef class CallProtocol:
    cdef Member member
    cdef FailureDetector failures
    cdef Team *team
    cdef bint is_later_stage   # the next call is a later stage of one call of the user's

    cdef int enter(self, bint holds_gil) except -1 nogil
    cdef int try_to_enter(self) noexcept nogil
    cdef int explain_refusal(self, int status) except -1
    cdef void publish(self, uint64_t signature, uint64_t nbytes, size_t moved) noexcept nogil
    cdef int leave(self, int status) except -1 nogil
    cdef int leave_for_good(self, int status) except -1
    cdef void turn_away(self) noexcept
    cdef void take_gil_back(self) noexcept nogil
    cdef int wait_outside(self, condition holds, void *context, int64_t sleep_after) noexcept
