from smcoll.barrier cimport agrees_on_bytes
from smcoll.cursor cimport Cursor
from smcoll.pipeline cimport Call, Section
from smcoll.team cimport Team

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


# A block of another length than we have room for: an error of its sender or ours alone, or do we
# disagree about the call?
cdef inline bint same_call(Team *team, Gathering *blocks, int rank, size_t sent) noexcept nogil:
    if sent == blocks.block[rank] or agrees_on_bytes(team, rank):
        return True
    team.awaited_rank = rank
    return False


# The part of `nbytes` bytes that lies in this section.
cdef inline size_t part_of(Section *section, size_t nbytes) noexcept nogil:
    if nbytes <= section.offset:
        return 0
    return min(section.nbytes, nbytes - section.offset)
