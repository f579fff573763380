from smcoll.allgather cimport Gathering
from smcoll.cursor cimport Cursor, Runs
from smcoll.streams cimport Transfer


cdef class Messages:
    cdef Transfer *outgoing
    cdef Transfer *incoming


cdef class Gathered:
    cdef Gathering all
    cdef size_t *block
    cdef Cursor *cursors

    cdef void room(self, int rank, char *address, size_t nbytes, const Runs *runs)
    cdef void contribute(self, char *address, size_t nbytes, const Runs *runs)
