from libc.stdint cimport int64_t

from smcoll.barrier cimport agrees_on_bytes
from smcoll.base.signature cimport COLLECTIVE_ALLGATHER
from smcoll.coll.pipeline cimport (
    Call, Section, end_storing, region, start_storing, stores_for, stores_of,
)
from smcoll.coll.stores cimport UNKNOWN_STORES, end_reading, start_reading
from smcoll.coll.truncation cimport Truncation
from smcoll.datatype.convertor cimport Convertor, pack_next, unpack_next
from smcoll.sync.team cimport Team

# What every rank sends to all, and where it goes. Blocks may differ in length.
cdef struct Gathering:
    size_t send_bytes
    Convertor send
    const size_t *block        # room for each rank's block, as the receive arguments say
    size_t longest             # of these; the same on every rank
    Convertor *recv            # where each rank's block goes
    bint in_place              # the own block is where it belongs already
    Truncation truncation


cdef int allgather_direct_inline(Call *call) noexcept nogil
cdef int allgather_direct(Call *call) noexcept nogil


# A result that is too long for the caches is written around them.
cdef inline void stream_results(Call *call, Gathering *blocks) noexcept nogil:
    cdef int rank
    for rank in range(call.team.size):
        blocks.recv[rank].streaming = (
            blocks.longest * <size_t> call.team.size
            >= call.team.streaming_from[COLLECTIVE_ALLGATHER])


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


# The own block's part of this section into our region: pipeline.pxd's `put`, from any layout.
cdef inline void pack_block(Call *call, Section *section, Gathering *blocks) noexcept nogil:
    cdef size_t nbytes = part_of(section, blocks.send_bytes)
    cdef int stores = stores_for(call, section)
    cdef int64_t began = start_storing(section)
    pack_next(&blocks.send, region(call, section, call.team.rank), nbytes, stores)
    end_storing(section, began, nbytes)


# A rank's block of `block` bytes, its part of this section, to its place: as `deliver`.
cdef inline void unpack_block(Call *call, Section *section, Gathering *blocks, int rank,
                              size_t block) noexcept nogil:
    cdef size_t nbytes = part_of(section, block)
    cdef int kind = UNKNOWN_STORES
    cdef int64_t began
    if blocks.recv[rank].runs == NULL:
        kind = stores_of(call, section, rank)
    began = start_reading(call.chosen, kind, nbytes, section.is_fresh)
    unpack_next(&blocks.recv[rank], region(call, section, rank), nbytes, kind)
    end_reading(call.chosen, kind, began, nbytes)
