from smcoll.coll.allgather cimport Gathering
from smcoll.coll.streams cimport Transfer
from smcoll.datatype.cursor cimport Cursor, Runs


cdef class Messages:
    cdef Transfer *outgoing
    cdef Transfer *incoming


cdef class Gathered:
    cdef Gathering all
    cdef size_t *block
    cdef Cursor *cursors

    cdef void room(self, int rank, char *address, size_t nbytes, const Runs *runs)
    cdef void contribute(self, char *address, size_t nbytes, const Runs *runs)
