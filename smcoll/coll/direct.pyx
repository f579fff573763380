"""Collectives on arrays where they lie, in shared heaps: LHS's "one copy, the minimum possible".

A call begins with an exchange in which every rank publishes where its buffers lie
(``peer_buffers``), and ends with one that proves that nobody reads or writes them any more. In
between, each rank is taken as it is: arrays in a heap are read and written there, others go through
the data regions section by section. All ranks have seen all of it: that nobody stages is known to
all and needs no sections, and where everybody does, or one says that all do, the call goes on as a
staged one. The operands of the ranks are combined in the same order either way.

Who writes what (protocol rule 1): rank r alone writes the r-th slice of every rank's result, after
the first exchange (its owner is in the call) and before it enters the last one (its owner leaves
the call after that). Operands of the r-th slice are read by rank r alone, before it writes the
result there: so operand and result may be the same memory. In an Allgather of two ranks each
writes its own block into the other one's result, between the same two exchanges.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from smcoll.barrier cimport (
    acquire_slot_waiting, advance_cursor, line_in_exchange, post_line, release_slot, wait_line,
)
from smcoll.base.kernels cimport copy_result, reduce_operands, strip_bytes
from smcoll.coll.allgather cimport (
    Gathering, pack_block, same_call, stream_results, unpack_block,
)
from smcoll.coll.all_read cimport allreduce_all_read
from smcoll.coll.peer_buffers cimport (
    PeerBuffers, all_still_in_the_call, end_in_agreement, find, learn_buffers, own_offset,
    publish_buffers, read_buffers, read_offset, still_in_the_call,
)
from smcoll.coll.pipeline cimport (
    ALL_STORE, SECTION_STEPS, STEP_IN, STEP_RESULT, Call, Section, complete, heard, heard_all,
    plan_call, post, reduce_into, region, tile, writable,
)
from smcoll.coll.tiled cimport allreduce_tiled, copy_in_but_own_slice, copy_out_others, reduce_tiled
from smcoll.coll.tree cimport bcast_fan_out, reduce_fan_in
from smcoll.coll.truncation cimport fitting
from smcoll.datatype.convertor cimport Convertor, copy_message, unpack_next
from smcoll.memory.heap cimport STAGED
from smcoll.memory.heap_pages cimport PAGE
from smcoll.segment cimport Line, segment_line
from smcoll.sync.team cimport DONE, FAILED_MISMATCH, BankCursor, Team, next_rank

cdef enum:
    OWN_FIRST = 512 << 10      # blocks up to here are copied to their own rank first (docs/heap.md)


# ---------------------------------------------------------------------- reductions

# call.sources has room for three pointers a rank: operands of a slice, then where each rank's
# operand and where its result lie, NULL where that is staged.
cdef inline const void **operand_addresses(Call *call) noexcept nogil:
    return call.sources + call.team.size


cdef inline const void **result_addresses(Call *call) noexcept nogil:
    return call.sources + 2 * call.team.size


cdef inline bint wants_result(Call *call, int rank) noexcept nogil:
    return call.root < 0 or rank == call.root


cdef inline bint overlap_in_part(Call *call) noexcept nogil:
    cdef const char *recv = call.recv
    return call.send != recv and call.send < recv + call.nbytes and recv < call.send + call.nbytes


cdef int exchange_buffers(Call *call, bint *nobody_stages, bint *all_stage) noexcept nogil:
    """Publish where our buffers lie, and learn it from all."""
    cdef Team *team = call.team
    cdef PeerBuffers buffers
    cdef int rank, status
    cdef bint mine = wants_result(call, team.rank)
    buffers.send = buffers.recv = STAGED
    # Not allowed by MPI: then nobody else reads or writes there.
    if not mine or not overlap_in_part(call):
        buffers.send = own_offset(team, call.send, call.nbytes)
        if mine:
            buffers.recv = own_offset(team, call.recv, call.nbytes)
    publish_buffers(team, &buffers, team.nbytes, call.staged_by_all)
    operand_addresses(call)[team.rank] = call.send if buffers.send != STAGED else NULL
    result_addresses(call)[team.rank] = call.recv if buffers.recv != STAGED else NULL
    status = learn_buffers(team, call.nbytes, call.nbytes, operand_addresses(call),
                           result_addresses(call), NULL, call.staged_by_all)
    if status != DONE:
        return status
    nobody_stages[0] = all_stage[0] = True
    for rank in range(team.size):
        all_stage[0] &= (operand_addresses(call)[rank] == NULL
                         and result_addresses(call)[rank] == NULL)
        nobody_stages[0] &= operand_addresses(call)[rank] != NULL and (
            not wants_result(call, rank) or result_addresses(call)[rank] != NULL)
    return DONE


cdef api int allreduce_shared_heap(Call *call) noexcept nogil:
    """Every rank reduces its slice of all operands and writes it into every rank's result.

    LHS 2.4's tiled reduction on the arrays themselves. Operands are combined in rank order.
    """
    cdef bint nobody_stages = False, all_stage = False
    cdef int status
    call.root = -1
    status = exchange_buffers(call, &nobody_stages, &all_stage)
    if status != DONE:
        return status
    if all_stage and call.team.size <= 2:
        return allreduce_all_read(call)
    if all_stage:
        return allreduce_tiled(call)
    return reduce_slices(call, nobody_stages)


cdef api int reduce_shared_heap(Call *call) noexcept nogil:
    """The same, into the root's result only."""
    cdef bint nobody_stages = False, all_stage = False
    cdef int status = exchange_buffers(call, &nobody_stages, &all_stage)
    if status != DONE:
        return status
    if all_stage and call.team.size <= 2 and call.operation.kernel != NULL:
        return reduce_fan_in(call)
    if all_stage:
        return reduce_tiled(call)
    return reduce_slices(call, nobody_stages)


cdef int reduce_slices(Call *call, bint nobody_stages) noexcept nogil:
    cdef Section whole
    # Of one that gave up the result may be something else by now.
    cdef int status = all_still_in_the_call(call.team)
    if status != DONE:
        return status
    if nobody_stages:
        whole.offset = 0
        whole.nbytes = call.nbytes
        reduce_own_slice(call, &whole, NULL)
    else:
        plan_call(call, 3, call.plan.section_bytes, ALL_STORE)
        call.phase[0] = stage_operand
        call.phase[1] = reduce_slice_of_section
        call.phase[2] = copy_out_staged
        status = complete(call)
        if status != DONE:
            return status
    return end_in_agreement(call.team)


cdef int stage_operand(Call *call, Section *section) noexcept nogil:
    cdef int status
    if operand_addresses(call)[call.team.rank] == NULL:
        return copy_in_but_own_slice(call, section)
    status = writable(call, section)
    if status == DONE:
        post(call, section, STEP_IN)
    return status


cdef int reduce_slice_of_section(Call *call, Section *section) noexcept nogil:
    cdef int status = heard_all(call, section, STEP_IN)
    if status != DONE:
        return status
    reduce_own_slice(call, section, region(call, section, call.team.rank))
    post(call, section, STEP_RESULT)
    return DONE


cdef bint somebody_copies_out(Call *call) noexcept nogil:
    """Whether another rank takes its result from the slices' owners."""
    cdef int rank
    for rank in range(call.team.size):
        if (rank != call.team.rank and wants_result(call, rank)
                and result_addresses(call)[rank] == NULL):
            return True
    return False


cdef int buffers_of_others(Call *call) noexcept nogil:
    """How many operands and results of other ranks lie in reach."""
    cdef int rank, count = 0
    for rank in range(call.team.size):
        if rank != call.team.rank:
            count += operand_addresses(call)[rank] != NULL
            count += result_addresses(call)[rank] != NULL
    return count


cdef void reduce_own_slice(Call *call, Section *section, char *staged) noexcept nogil:
    """The own slice of all operands at once, a strip at a time, to all who want it.

    ``staged``: our region of this section, for those who copy it out.
    """
    cdef Team *team = call.team
    cdef size_t at = tile(call, section, team.rank), strip
    cdef size_t end = tile(call, section, team.rank + 1)
    cdef size_t longest = strip_bytes(call.operation, end - at, call.element_size)
    cdef const char *place
    cdef char *out
    cdef bint to_region = staged != NULL and somebody_copies_out(call)
    cdef int rank
    team.direct_bytes += (end - at) * <size_t> buffers_of_others(call)
    while at < end:
        strip = min(longest, end - at)
        for rank in range(team.size):
            place = <const char *> operand_addresses(call)[rank]
            if rank == team.rank:
                place = call.send
            if place != NULL:
                call.sources[rank] = place + section.offset + at
            else:
                call.sources[rank] = region(call, section, rank) + at
        # Where the result is copied from afterwards.
        if to_region:
            out = staged + at
        elif wants_result(call, team.rank):
            out = call.recv + section.offset + at
        else:
            out = <char *> result_addresses(call)[call.root] + section.offset + at
        if to_region:
            reduce_into(call, section, out, team.size, strip)
        else:
            reduce_operands(call.operation, out, call.sources, team.size,
                            strip // call.element_size)
        hand_out(call, section.offset + at, out, strip)
        at += strip


cdef inline void hand_out(Call *call, size_t offset, const char *result,
                          size_t nbytes) noexcept nogil:
    """A strip of the result, to all whose result lies in reach."""
    cdef Team *team = call.team
    cdef char *place
    cdef int i, rank
    for i in range(team.size):
        rank = next_rank(team, i)
        place = <char *> result_addresses(call)[rank]
        if rank == team.rank and wants_result(call, rank):
            place = call.recv
        if place == NULL or place + offset == result:
            continue
        copy_result(place + offset, result, nbytes, call.streaming)


cdef int copy_out_staged(Call *call, Section *section) noexcept nogil:
    """Who stages its result copies the other ranks' slices."""
    cdef int mine = call.team.rank
    if not wants_result(call, mine) or result_addresses(call)[mine] != NULL:
        return DONE
    return copy_out_others(call, section)


# ---------------------------------------------------------------------- broadcast

cdef enum:
    BCAST_PLACE = 1            # the root's line says where its data lie
    BCAST_READ = 2             # this rank has them


cdef api int bcast_shared_heap(Call *call) noexcept nogil:
    """One plain copy out of the root's array by each rank; the fan-out tree where it stages.

    The root publishes where its data lie in a segment of its own, and goes on when all have posted
    there that they have read. Of two ranks each copies a half.
    """
    cdef Team *team = call.team
    cdef BankCursor slot = team.segments
    cdef uint64_t tick = team.tick
    cdef Line *line = segment_line(&team.layout, team.base, call.root, slot.bank, slot.slot)
    cdef uint64_t offset = STAGED
    cdef int status
    if team.size == 2:
        return bcast_by_halves(call)
    team.tick += SECTION_STEPS
    advance_cursor(&team.layout, &team.segments)
    if team.rank == call.root:
        status = acquire_slot_waiting(team, &slot)
        if status != DONE:
            return status
        offset = own_offset(team, call.send, call.nbytes)
        memcpy(line.payload, &offset, sizeof(offset))
        post_line(team, line, tick + BCAST_PLACE)
        if offset != STAGED:
            status = all_have_read(team, &slot, tick)
    else:
        status = wait_line(team, line, tick + BCAST_PLACE, call.root)
        if status == DONE:
            offset = read_offset(line)
            status = copy_from_root(call, &slot, offset, tick)
    if status != DONE:
        return status
    release_slot(team, &slot)
    if offset == STAGED:
        return bcast_fan_out(call)
    return DONE


cdef int copy_from_root(Call *call, const BankCursor *slot, uint64_t offset,
                        uint64_t tick) noexcept nogil:
    cdef Team *team = call.team
    cdef char *source
    cdef int status = find(team, call.root, offset, call.nbytes, &source)
    if status != DONE or source == NULL:
        return status
    copy_result(call.recv, source, call.nbytes, call.streaming)
    team.direct_bytes += call.nbytes
    status = still_in_the_call(team, call.root)
    if status == DONE:
        status = acquire_slot_waiting(team, slot)
    if status == DONE:
        post_line(team, segment_line(&team.layout, team.base, team.rank, slot.bank, slot.slot),
                  tick + BCAST_READ)
    return status


cdef int all_have_read(Team *team, const BankCursor *slot, uint64_t tick) noexcept nogil:
    cdef int i, rank, status
    for i in range(1, team.size):
        rank = next_rank(team, i)
        status = wait_line(team, segment_line(&team.layout, team.base, rank, slot.bank, slot.slot),
                           tick + BCAST_READ, rank)
        if status != DONE:
            return status
    return DONE


cdef int bcast_by_halves(Call *call) noexcept nogil:
    """The reader copies the first half out of the root's array, the root writes the other one into
    the reader's."""
    cdef Team *team = call.team
    cdef PeerBuffers buffers
    cdef int reader = 1 - call.root, status
    # Whole pages: the two write none together.
    cdef size_t half = call.nbytes // 2 // PAGE * PAGE
    cdef const char *source
    cdef char *place
    buffers.send = buffers.recv = STAGED
    if team.rank == call.root:
        buffers.send = own_offset(team, call.send, call.nbytes)
    else:
        buffers.recv = own_offset(team, call.recv, call.nbytes)
    operand_addresses(call)[team.rank] = call.send if buffers.send != STAGED else NULL
    result_addresses(call)[team.rank] = call.recv if buffers.recv != STAGED else NULL
    publish_buffers(team, &buffers, team.nbytes, call.staged_by_all)
    status = learn_buffers(team, call.nbytes, call.nbytes, operand_addresses(call),
                           result_addresses(call), NULL, call.staged_by_all)
    if status != DONE:
        return status
    source = <const char *> operand_addresses(call)[call.root]
    place = <char *> result_addresses(call)[reader]
    if source == NULL:
        return bcast_fan_out(call)
    if place == NULL:
        half = call.nbytes         # the reader copies all of it
    if team.rank == reader:
        copy_result(call.recv, source, half, call.streaming)
        team.direct_bytes += half
    elif place != NULL:
        status = still_in_the_call(team, reader)
        if status != DONE:
            return status
        copy_result(place + half, source + half, call.nbytes - half, call.streaming)
        team.direct_bytes += call.nbytes - half
    return end_in_agreement(team)


# ---------------------------------------------------------------------- allgather

# call.sources has, for each rank, where its block lies, NULL where it is staged; and behind these
# how long it is.
cdef inline size_t *lengths(Call *call) noexcept nogil:
    return <size_t *> (call.sources + call.team.size)


cdef inline bint is_staged(Call *call, int rank) noexcept nogil:
    return call.sources[rank] == NULL and lengths(call)[rank] > 0


cdef api int allgather_shared_heap(Call *call) noexcept nogil:
    """Every rank copies all blocks out of the other ranks' arrays.

    Of two, each writes its block into the other's result. Where rank 0 has measured that they are
    far, around the caches: lines that their owner has stored as programs do come slowly
    (docs/stores.md).
    """
    cdef Gathering *blocks = <Gathering *> call.details
    cdef PeerBuffers published
    cdef int rank, status
    cdef bint somebody_stages = False, peer_writes = False
    stream_results(call, blocks)
    status = exchange_blocks(call, blocks, &published)
    if status == DONE and call.team.size == 2:
        status = write_own_block(call, blocks, &published, &peer_writes)
    if status != DONE:
        return status
    if not peer_writes:
        copy_direct_blocks(call, blocks)
    if blocks.longest > OWN_FIRST:
        copy_own_block(call, blocks)
    for rank in range(call.team.size):
        somebody_stages |= is_staged(call, rank)
    if somebody_stages:
        plan_call(call, 2, call.plan.section_bytes, ALL_STORE)
        if blocks.send.runs != NULL:
            call.chosen = NULL
        call.phase[0] = stage_block
        call.phase[1] = copy_out_staged_blocks
        status = complete(call)
        if status != DONE:
            return status
    return end_in_agreement(call.team)


cdef int exchange_blocks(Call *call, Gathering *blocks, PeerBuffers *buffers) noexcept nogil:
    """Publish where our block lies and how long it is, and learn it from all.

    Of two ranks also where the other one's block goes, and for how much there is room.
    """
    cdef Team *team = call.team
    cdef int i, rank, status, other = 1 - team.rank
    buffers.send = buffers.recv = STAGED
    buffers.room = 0
    buffers.is_far = call.peer_is_far
    if blocks.send.runs == NULL:
        buffers.send = own_offset(team, blocks.send.address, blocks.send_bytes)
    if team.size == 2 and blocks.recv[other].runs == NULL:
        buffers.room = blocks.block[other]
        buffers.recv = own_offset(team, blocks.recv[other].address, buffers.room)
    publish_buffers(team, buffers, blocks.send_bytes, call.staged_by_all)
    call.sources[team.rank] = blocks.send.address if buffers.send != STAGED else NULL
    lengths(call)[team.rank] = blocks.send_bytes
    if blocks.longest <= OWN_FIRST:
        # While the others come.
        copy_own_block(call, blocks)
    # What was sent, not what we have room for: whether anybody stages is known to all alike.
    status = learn_buffers(team, 0, 0, call.sources, NULL, lengths(call),
                           call.staged_by_all)
    if status != DONE:
        return status
    for i in range(1, team.size):
        rank = next_rank(team, i)
        if not same_call(team, blocks, rank, lengths(call)[rank]):
            return FAILED_MISMATCH
        fitting(&blocks.truncation, rank, lengths(call)[rank], blocks.block[rank])
    return DONE


cdef int write_own_block(Call *call, Gathering *blocks, const PeerBuffers *ours,
                         bint *peer_writes) noexcept nogil:
    """Of two ranks: if our block lies in our heap and the other one has published a place for it.

    ``peer_writes``: whether the other one does the same. Both know both from what they published.
    """
    cdef Team *team = call.team
    cdef PeerBuffers theirs
    cdef size_t nbytes
    cdef char *place
    cdef int other = 1 - team.rank, status
    cdef bint is_far
    # Until we enter the last exchange: the other one's line stays as it is.
    read_buffers(line_in_exchange(team, other), &theirs)
    is_far = ours.is_far if team.rank == 0 else theirs.is_far
    peer_writes[0] = call.sources[other] != NULL and ours.recv != STAGED
    if call.sources[team.rank] == NULL or theirs.recv == STAGED:
        return DONE
    nbytes = min(blocks.send_bytes, theirs.room)
    status = find(team, other, theirs.recv, nbytes, &place)
    if status == DONE:
        status = still_in_the_call(team, other)
    if status != DONE:
        return status
    copy_result(place, blocks.send.address, nbytes, is_far or blocks.recv[other].streaming)
    team.direct_bytes += nbytes
    return DONE


cdef void copy_own_block(Call *call, Gathering *blocks) noexcept nogil:
    cdef Convertor own, place
    cdef int mine = call.team.rank
    if not blocks.in_place:
        # The convertors themselves may be needed for staging.
        own = blocks.send
        place = blocks.recv[mine]
        copy_message(&own, &place, fitting(&blocks.truncation, mine, blocks.send_bytes,
                                           blocks.block[mine]))


cdef void copy_direct_blocks(Call *call, Gathering *blocks) noexcept nogil:
    """Those that lie in a heap."""
    cdef int i, rank
    for i in range(1, call.team.size):
        rank = next_rank(call.team, i)
        if call.sources[rank] != NULL:
            call.team.direct_bytes += min(lengths(call)[rank], blocks.block[rank])
            unpack_next(&blocks.recv[rank], <const char *> call.sources[rank],
                        min(lengths(call)[rank], blocks.block[rank]))


cdef int stage_block(Call *call, Section *section) noexcept nogil:
    cdef Gathering *blocks = <Gathering *> call.details
    cdef int status
    if not is_staged(call, call.team.rank):
        return DONE
    status = writable(call, section)
    if status != DONE:
        return status
    pack_block(call, section, blocks)
    post(call, section, STEP_IN)
    return DONE


cdef int copy_out_staged_blocks(Call *call, Section *section) noexcept nogil:
    cdef Gathering *blocks = <Gathering *> call.details
    cdef int rank, status
    while section.progress < call.team.size - 1:
        rank = next_rank(call.team, section.progress + 1)
        if is_staged(call, rank):
            status = heard(call, section, rank, STEP_IN)
            if status != DONE:
                return status
            unpack_block(call, section, blocks, rank, min(lengths(call)[rank], blocks.block[rank]))
        section.progress += 1
    return DONE
