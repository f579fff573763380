cimport cython
from libc.stdint cimport int64_t, uint64_t

from smcoll.engine.member cimport Member
from smcoll.sync.team cimport Team


@cython.final
cdef class Known:
    cdef readonly uint64_t signature, nbytes, history
    cdef readonly uint64_t number           # as users count

    cdef what(self)


@cython.final
cdef class AcrossNodes:
    # What a call over several nodes adds to what the ranks of one of them know.
    cdef uint64_t call             # the call over all nodes that they are in
    cdef double patience           # times the set timeout: who waits for who waits gives up later
    cdef list outside              # ranks of another node that this one waits for
    cdef list names                # of this node's ranks, as the communicator numbers them
    cdef dict roles                # of the nodes' leaders, by the rank, in words
    cdef object look_around        # callable(seconds): raises what other nodes told
    cdef object call_in_words      # callable


@cython.final
cdef class FailureDetector:
    cdef Member member
    cdef Team *team
    cdef AcrossNodes across        # None: the communicator has one node
    cdef tuple failure             # the error, and its text, that any further call raises
    cdef uint64_t uncompleted      # a call that this rank began, and left without the others
    cdef uint64_t warned_in        # the last call of which a warning was printed, and the stage
    cdef int64_t looked_at_all     # when a wait last looked at all ranks' lives (monotonic ns)
    cdef object __weakref__

    cdef Known published_call(self, int rank, uint64_t call)
    cdef dict published_by_all(self, uint64_t call)
    cdef describe_mismatch(self, dict entries)
    cdef bint is_ours(self, Known entry)
    cdef uint64_t user_call(self) noexcept
    cdef uint64_t at_latest_now(self, uint64_t since) noexcept
    cdef bint left_a_call(self) noexcept
    cdef list awaited_outside(self, int awaited)
    cdef bint concerns_us(self, int rank, int awaited)
    cdef bint has_left(self, int rank)
    cdef bint has_died(self, int rank)
    cdef bint owes_us(self, int rank, int awaited)
