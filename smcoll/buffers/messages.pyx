"""What one rank sends and receives in one call, and the memory that describes it."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc

from smcoll.coll.streams cimport Transfer
from smcoll.coll.truncation cimport NOBODY
from smcoll.datatype.convertor cimport Convertor, Runs, start_convertor


@cython.freelist(4)
cdef class Messages:
    """What one rank sends and receives in one call: at most a message to and from each rank.

    A call's own, whatever calls a signal handler tries meanwhile.
    """

    def __cinit__(self, int ranks):
        self.outgoing = <Transfer *> malloc(ranks * sizeof(Transfer))
        self.incoming = <Transfer *> malloc(ranks * sizeof(Transfer))
        if self.outgoing == NULL or self.incoming == NULL:
            raise MemoryError
        self.ranks = ranks
        self.truncation.sender = NOBODY

    def __dealloc__(self):
        free(self.outgoing)
        free(self.incoming)

    cdef Transfer *send(self, int peer, const char *address, size_t nbytes, const Runs *runs):
        """One more message to a rank, which stays as it is until the call is over."""
        cdef Transfer *message = &self.outgoing[self.sends]
        self.sends += 1
        message.peer = peer
        message.nbytes = nbytes
        message.behind = NULL
        start_convertor(&message.convertor, <char *> address, runs, nbytes)
        return message

    cdef size_t result_bytes(self) noexcept:
        """For how many bytes this rank has room."""
        cdef size_t nbytes = self.own_place.nbytes if self.keeps_own else 0
        cdef int i
        for i in range(self.receives):
            nbytes += self.incoming[i].room
        return nbytes

    cdef send_bytes(self, int peer, bytes packet):
        self.send(peer, PyBytes_AS_STRING(packet), PyBytes_GET_SIZE(packet), NULL)

    cdef Transfer *receive(self, int peer, char *address, size_t room, const Runs *runs):
        """One more message from a rank, of at most ``room`` bytes."""
        cdef Transfer *message = &self.incoming[self.receives]
        self.receives += 1
        message.peer = peer
        message.room = room
        message.grows = False
        message.behind = NULL
        start_convertor(&message.convertor, address, runs, room)
        return message

    cdef void keep(self, char *address, size_t nbytes, char *place, size_t room) noexcept:
        """This rank's message to itself, between contiguous places."""
        self.keeps_own = True
        start_convertor(&self.own, address, NULL, nbytes)
        start_convertor(&self.own_place, place, NULL, room)

    cdef Transfer *receive_any_length(self, int peer):
        """One more message from a rank, whose length only its sender knows."""
        cdef Transfer *message = self.receive(peer, NULL, 0, NULL)
        message.grows = True
        if self.grown is None:
            self.grown = [None] * self.ranks
        return message


@cython.freelist(4)
cdef class Gathered:
    """The blocks of an Allgather and the memory that describes them."""

    def __cinit__(self, int ranks):
        self.block = <size_t *> malloc(ranks * sizeof(size_t))
        self.convertors = <Convertor *> malloc(ranks * sizeof(Convertor))
        if self.block == NULL or self.convertors == NULL:
            raise MemoryError
        self.all.block = self.block
        self.all.recv = self.convertors
        self.all.longest = 0
        self.all.in_place = True
        self.all.truncation.sender = NOBODY

    def __dealloc__(self):
        free(self.block)
        free(self.convertors)

    cdef void room(self, int rank, char *address, size_t nbytes, const Runs *runs) noexcept:
        self.block[rank] = nbytes
        self.all.longest = max(self.all.longest, nbytes)
        start_convertor(&self.convertors[rank], address, runs, nbytes)

    cdef void contribute(self, char *address, size_t nbytes, const Runs *runs) noexcept:
        self.all.send_bytes = nbytes
        start_convertor(&self.all.send, address, runs, nbytes)
