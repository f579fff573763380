from libc.stdint cimport uint64_t

from smcoll.coll.truncation cimport Truncation
from smcoll.datatype.convertor cimport Convertor
from smcoll.sync.team cimport StoreClass, Team

cdef enum:
    OUTGOING = 1
    INCOMING = 2
    NEEDS_MEMORY = 2           # a step's answer: Exchange.unplaced has no room for its message yet


# Where this rank stands in its streams to and from another one: functions of the messages sent and
# received.
cdef struct Stream:
    uint64_t sent              # cells to this rank so far
    uint64_t credit            # of these it has read so many, as we last saw
    uint64_t received          # cells from this rank that we have read
    # Chunks have positions, the same on both ranks (begin_chunks).
    uint64_t began             # of this exchange's first ones
    uint64_t chunks_sent       # in this exchange
    uint64_t chunks_received
    uint64_t answered          # how many the exchange had that this one answers
    bint is_turned             # the two have each other's rooms in even passes, not in odd ones
    int messages               # of this exchange: OUTGOING, INCOMING, or both
    int next_messages          # of one that begins
    bint both_send             # in this exchange, or one in it and the other in the one before
    bint awaits                # chunks of the incoming one may still come


# One message to or from another rank.
cdef struct Transfer:
    int peer
    Convertor convertor              # where the user's bytes are
    size_t nbytes              # outgoing: the message; incoming: known from its first cell on
    size_t room                # incoming: bytes that fit the user's memory
    size_t done
    size_t chunk               # bytes of its chunks: its sender's choice, told in the first cell
    bint begun, finished
    uint64_t heap_offset       # where it lies in its sender's heap, or STAGED
    uint64_t address           # where in its sender's private memory it may be read, or 0
    bint is_offered            # that address was told to the receiver
    bint has_offer             # incoming: its sender was told where in our heap it may write it
    bint is_written            # incoming: and does so
    uint64_t cell              # outgoing, read in place: the cell whose credit says that it was
    StoreClass *chosen         # the choice of stores for messages of this length; NULL: none
    bint grows                 # incoming: ask for memory when the length is known
    const Transfer *behind     # incoming, in place: may only overwrite what this one has sent


# All messages of one call at one rank. Resumable.
cdef struct Exchange:
    Team *team
    Stream *streams            # one per rank
    Transfer *outgoing
    Transfer *incoming
    int sends, receives        # how many of each
    size_t direct_from         # messages of so many bytes are read in their sender's heap
    bint may_be_read           # what is sent, in private memory, through the kernel
    bint may_be_written        # what is sent, from heap to heap, by its sender
    Convertor *own                # this rank's message to itself, and its place; or NULL
    Convertor *own_place
    int unfinished
    Transfer *unplaced
    Truncation *truncation


cdef size_t chunk_bytes(const Team *team, size_t nbytes, bint also_receives) noexcept nogil
cdef void init_streams(Team *team, Stream *streams, uint64_t start) noexcept nogil
cdef void begin_exchange(Exchange *exchange) noexcept nogil
cdef int advance_exchange(Exchange *exchange) noexcept nogil
cdef int complete_exchange(Exchange *exchange) noexcept nogil
