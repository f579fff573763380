"""The memory that describes the messages of one call."""

cimport cython
from libc.stdlib cimport free, malloc

from smcoll.coll.streams cimport Transfer
from smcoll.datatype.cursor cimport Cursor, Runs, start_cursor


@cython.freelist(4)
cdef class Messages:
    """The messages of one call: its own, whatever calls a signal handler tries meanwhile."""

    def __cinit__(self, int ranks):
        self.outgoing = <Transfer *> malloc(ranks * sizeof(Transfer))
        self.incoming = <Transfer *> malloc(ranks * sizeof(Transfer))
        if self.outgoing == NULL or self.incoming == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.outgoing)
        free(self.incoming)


@cython.freelist(4)
cdef class Gathered:
    """The blocks of an Allgather and the memory that describes them."""

    def __cinit__(self, int ranks):
        self.block = <size_t *> malloc(ranks * sizeof(size_t))
        self.cursors = <Cursor *> malloc(ranks * sizeof(Cursor))
        if self.block == NULL or self.cursors == NULL:
            raise MemoryError
        self.all.block = self.block
        self.all.recv = self.cursors
        self.all.longest = 0
        self.all.in_place = True
        self.all.truncated = 0

    def __dealloc__(self):
        free(self.block)
        free(self.cursors)

    cdef void room(self, int rank, char *address, size_t nbytes, const Runs *runs):
        self.block[rank] = nbytes
        self.all.longest = max(self.all.longest, nbytes)
        start_cursor(&self.cursors[rank], address, runs, nbytes)

    cdef void contribute(self, char *address, size_t nbytes, const Runs *runs):
        self.all.send_bytes = nbytes
        start_cursor(&self.all.send, address, runs, nbytes)
