"""Allgather and Allgatherv: every rank posts its block once, everybody copies all of them.

All ranks know the longest block: MPI wants the receive counts to be the same everywhere. How much
a rank really sends stands in its flag line; more than the receiver has room for is a truncation
there, less leaves the rest untouched.
"""

from libc.stdint cimport uint64_t

from smcoll.barrier cimport line_in_exchange, post_line_length, wait_line_with_length
from smcoll.base.atomics cimport load_relaxed, store_relaxed
from smcoll.coll.pipeline cimport (
    ALL_STORE, Section, complete, heard_length, line_of, plan_call, post_length, region, writable,
)
from smcoll.coll.truncation cimport fitting
from smcoll.datatype.convertor cimport pack_next, unpack_next
from smcoll.segment cimport Line
from smcoll.sync.team cimport DONE, FAILED_MISMATCH, next_rank

cdef enum:
    STEP_BLOCK = 1


cdef inline size_t room_for(Gathering *blocks, int rank, size_t sent) noexcept nogil:
    return fitting(&blocks.truncation, rank, sent, blocks.block[rank])


cdef int allgather_direct_inline(Call *call) noexcept nogil:
    """Short blocks: an all-read exchange, the block in the flag's own lines."""
    cdef Gathering *blocks = <Gathering *> call.details
    cdef Team *team = call.team
    cdef int i, rank, status
    cdef Line *line
    cdef size_t sent
    team.exchanges += 1
    line = line_in_exchange(team, team.rank)
    # A block beyond the agreed longest is truncated by everybody: its first bytes will do.
    pack_next(&blocks.send, line.payload, min(blocks.send_bytes, blocks.longest))
    post_line_length(team, line, team.exchanges, blocks.send_bytes)
    if not blocks.in_place:
        unpack_next(&blocks.recv[team.rank], line.payload,
                    room_for(blocks, team.rank, blocks.send_bytes))
    for i in range(1, team.size):
        rank = next_rank(team, i)
        line = line_in_exchange(team, rank)
        status = wait_line_with_length(team, line, team.exchanges, rank)
        if status != DONE:
            return status
        # Read once: the length that is checked is the one that is used (protocol rule 10).
        sent = load_relaxed(&line.nbytes)
        if not same_call(team, blocks, rank, sent):
            return FAILED_MISMATCH
        unpack_next(&blocks.recv[rank], line.payload, room_for(blocks, rank, sent))
    return DONE


cdef int allgather_direct(Call *call) noexcept nogil:
    """Section by section through the data regions; ``call.nbytes`` is the longest block."""
    cdef Gathering *blocks = <Gathering *> call.details
    stream_results(call, blocks)
    plan_call(call, 2, call.plan.section_bytes, ALL_STORE)
    if blocks.send.runs != NULL:
        # Run by run other stores are used.
        call.chosen = NULL
    call.phase[0] = copy_in_block
    call.phase[1] = copy_out_blocks
    return complete(call)


# The length of the longest block, from which all places follow: behind the hint of `tell_stores`.
cdef inline uint64_t *told_longest(Line *line) noexcept nogil:
    return <uint64_t *> line.payload + 3


cdef int copy_in_block(Call *call, Section *section) noexcept nogil:
    cdef Gathering *blocks = <Gathering *> call.details
    cdef int rank = call.team.rank, status = writable(call, section)
    cdef size_t room
    cdef const char *own = blocks.send.address + section.offset
    if status != DONE:
        return status
    pack_block(call, section, blocks)
    store_relaxed(told_longest(line_of(call, section, rank)), blocks.longest)
    post_length(call, section, STEP_BLOCK, blocks.send_bytes)
    if not blocks.in_place:
        # After the others can read it.
        room = min(blocks.send_bytes, blocks.block[rank])
        if section.number == 0:
            room = room_for(blocks, rank, blocks.send_bytes)
        if blocks.send.runs != NULL:
            own = region(call, section, rank)
        unpack_next(&blocks.recv[rank], own, part_of(section, room))
    return DONE


cdef int copy_out_blocks(Call *call, Section *section) noexcept nogil:
    cdef Gathering *blocks = <Gathering *> call.details
    cdef int rank, status
    cdef size_t sent = 0, room
    while section.progress < call.team.size - 1:
        rank = next_rank(call.team, section.progress + 1)
        status = heard_length(call, section, rank, STEP_BLOCK, &sent)
        if status != DONE:
            return status
        if section.number == 0 and not (
                load_relaxed(told_longest(line_of(call, section, rank))) == blocks.longest
                and same_call(call.team, blocks, rank, sent)):
            call.team.awaited_rank = rank
            return FAILED_MISMATCH
        room = min(sent, blocks.block[rank])
        if section.number == 0:
            room = room_for(blocks, rank, sent)
        unpack_block(call, section, blocks, rank, room)
        section.progress += 1
    return DONE
