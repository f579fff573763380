cimport cython

from smcoll.buffers.messages cimport Messages
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

    cdef int measured(self, Messages messages, int collective, bint may_be_read,
                      int *truncated) noexcept
    cdef int compared(self, Messages messages) noexcept
    cdef int run(self, Messages messages, int collective, bint may_be_read, bint in_heap,
                 int *truncated) noexcept
    cdef place(self, Transfer *message, list grown)
