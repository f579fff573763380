cimport cython

from smcoll.buffers.messages cimport Messages
from smcoll.coll.routes cimport RouteChoice
from smcoll.coll.streams cimport Transfer
from smcoll.engine.call cimport CallProtocol
from smcoll.engine.peer_memory cimport PeerMemory
from smcoll.engine.reservation cimport Reservation
from smcoll.sync.team cimport Team


@cython.final
cdef class Exchanges:
    cdef CallProtocol protocol
    cdef Reservation memory
    cdef PeerMemory peers
    cdef Team *team
    # From so many bytes of result on the root of a Gather measures whether it writes them around
    # the caches; SIZE_MAX: it doesn't. ROUTE_CLASSES choices, or NULL.
    cdef size_t measured_results_from
    cdef RouteChoice *results

    cdef measure_results(self, size_t nbytes)
    cdef object result_in_use(self, size_t nbytes)
    cdef void see_other_root(self, Messages messages) noexcept
    cdef RouteChoice *choice_of_result(self, int collective, size_t nbytes) noexcept
    cdef int measured(self, Messages messages, int collective, bint may_be_read) noexcept
    cdef int compared(self, Messages messages) noexcept
    cdef int run(self, Messages messages, int collective, bint may_be_read, bint in_heap,
                 bint streaming, bint receiver_is_far) noexcept
    cdef place(self, Transfer *message, list grown)
