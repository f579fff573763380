from libc.stdint cimport uint64_t

from smcoll.coll.allgather cimport Gathering
from smcoll.coll.streams cimport Transfer
from smcoll.coll.truncation cimport Truncation
from smcoll.datatype.convertor cimport Convertor, Runs


cdef class Messages:
    cdef Transfer *outgoing
    cdef Transfer *incoming
    cdef int sends, receives   # how many of each
    cdef list grown            # by rank: what came of unknown length, as bytes
    cdef bint keeps_own        # this rank sends to itself, too:
    cdef Convertor own, own_place     # the message, and where it goes
    cdef int ranks
    cdef Truncation truncation
    cdef uint64_t agreed       # bytes that all ranks must say in this call; 0: each its own

    cdef Transfer *send(self, int peer, const char *address, size_t nbytes, const Runs *runs)
    cdef Transfer *receive(self, int peer, char *address, size_t room, const Runs *runs)
    cdef void keep(self, char *address, size_t nbytes, char *place, size_t room) noexcept
    cdef Transfer *receive_any_length(self, int peer)
    cdef size_t result_bytes(self) noexcept
    cdef send_bytes(self, int peer, bytes packet)


cdef class Gathered:
    cdef Gathering all
    cdef size_t *block
    cdef Convertor *convertors

    cdef void room(self, int rank, char *address, size_t nbytes, const Runs *runs) noexcept
    cdef void contribute(self, char *address, size_t nbytes, const Runs *runs) noexcept
