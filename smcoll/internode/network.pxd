from smcoll.engine.failure cimport AcrossNodes
from smcoll.engine.node cimport NodeEngine
from smcoll.internode.notices cimport CallRecord, Notices


cdef enum:
    OF_NOTICES = 3                    # its tags, from a communicator's first one on

# In front of every message between nodes: of which call it is (rule 9), and how long.
cdef struct Header:
    CallRecord call
    size_t nbytes


cdef class Parcel:
    # One message to or from a rank of another node.
    cdef Network network
    cdef readonly int peer
    cdef bint incoming, done
    cdef object first              # request of the header, which a short message travels with
    cdef object rest               # of a long message itself
    cdef bytearray staging
    cdef char *where
    cdef size_t room
    cdef size_t nbytes             # incoming: what was sent, known from the header on
    cdef bytes grown               # incoming, where the length was not known
    cdef bint grows
    cdef object kept               # what the bytes lie in

    cdef bint test(self) except -1
    cdef open(self)
    cdef call_back(self)
    cdef bint at_rest(self) except -1


cdef class Network:
    cdef object comm               # hidden; ranks as in the communicator that spans the nodes
    cdef readonly int tag
    cdef NodeEngine node           # of this node's ranks: waits are stages of their calls
    cdef AcrossNodes across
    cdef object placement
    cdef readonly Notices notices
    cdef list stagings
    cdef set in_flight
    cdef list waiting              # parcels of the wait that this rank is in
    cdef object error
    cdef unsigned int completed    # waits
    cdef readonly size_t messages, message_bytes

    cdef Parcel new_parcel(self, int peer, bint incoming)
    cdef Parcel send(self, int peer, const char *data, size_t nbytes, kept=*)
    cdef Parcel receive(self, int peer, char *where, size_t room, kept=*)
    cdef Parcel receive_any_length(self, int peer)
    cdef Parcel send_directly(self, int peer, const char *data, size_t nbytes, kept)
    cdef Parcel receive_directly(self, int peer, char *where, size_t nbytes, kept)
    cdef bint all_here(self) except -1
    cdef int complete(self, list parcels) except -1
