from smcoll.barrier cimport Team
from smcoll.cursor cimport Cursor
from smcoll.pipeline cimport Call

# What every rank sends to all, and where it goes. Blocks may differ in length.
cdef struct Gathering:
    size_t send_bytes
    Cursor send
    const size_t *block        # room for each rank's block, as the receive arguments say
    size_t longest             # of these; the same on every rank
    Cursor *recv               # where each rank's block goes
    bint in_place              # the own block is where it belongs already
    int truncated              # blocks that were longer than the room for them


cdef int allgather_inline(Team *team, Gathering *blocks) noexcept nogil
cdef int allgather_direct(Call *call, Gathering *blocks, bint pipelined,
                          size_t section_bytes) noexcept nogil
