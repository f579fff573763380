"""Reduce_scatter and Reduce_scatter_block: every rank reduces its own block of all vectors.

This is the first half of the tiled reduction (LHS 2.4), with the caller's blocks for slices. A
section holds one piece of each rank's block, so that all ranks have work in every section.
Operands are combined in rank order.
"""

from smcoll.barrier cimport line_in_exchange, post_line, wait_line
from smcoll.base.kernels cimport copy_bytes, reduce_operands
from smcoll.coll.pipeline cimport (
    ALL_STORE, CACHE_LINE, STEP_IN, Section, complete, heard_all, occupy, plan_call, post, put,
    reduce_from, region, stores_of_others, writable,
)
from smcoll.coll.stores cimport UNKNOWN_STORES
from smcoll.segment cimport Line
from smcoll.sync.team cimport DONE, Team, next_rank

cdef int reduce_scatter_direct_inline(Call *call) noexcept nogil:
    """Short vectors: an all-read exchange, the whole vector in the flag's own lines."""
    cdef const Partition *blocks = <const Partition *> call.details
    cdef Team *team = call.team
    cdef int i, rank, status
    cdef Line *line
    cdef size_t begin = blocks.begin[team.rank]
    team.exchanges += 1
    line = line_in_exchange(team, team.rank)
    copy_bytes(line.payload, call.send, blocks.begin[team.size])
    post_line(team, line, team.exchanges)
    call.sources[team.rank] = call.send + begin
    if blocks.in_place:
        # There the result may overlap the own block in part, which kernels do not allow.
        call.sources[team.rank] = line.payload + begin
    for i in range(1, team.size):
        rank = next_rank(team, i)
        line = line_in_exchange(team, rank)
        status = wait_line(team, line, team.exchanges, rank)
        if status != DONE:
            return status
        call.sources[rank] = line.payload + begin
    reduce_operands(call.operation, call.recv, call.sources, team.size,
                    (blocks.begin[team.rank + 1] - begin) // call.element_size)
    return DONE


cdef size_t piece_of_block(int ranks, size_t section_bytes, size_t element_size) noexcept nogil:
    """Bytes of each block in one section; 0 where not even an element fits."""
    cdef size_t piece = section_bytes // <size_t> ranks
    if piece > CACHE_LINE:
        piece -= piece % CACHE_LINE
    return piece - piece % element_size


cdef int reduce_scatter_direct(Call *call) noexcept nogil:
    """Section by section through the data regions. A piece must hold an element."""
    cdef const Partition *blocks = <const Partition *> call.details
    call.nbytes = blocks.longest
    plan_call(call, 2, piece_of_block(call.team.size, call.plan.section_bytes,
                                      call.element_size), ALL_STORE)
    occupy(call, <size_t> call.team.size * call.section_bytes)
    call.phase[0] = copy_in_pieces
    call.phase[1] = reduce_own_piece
    return complete(call)


cdef inline size_t place_of_piece(Call *call, int source, int destination) noexcept nogil:
    """Where in its region a rank puts the piece for another one.

    Counted from its own rank on: so it is the same place in both regions of two ranks, which change
    them (plan_call). The last one is its own, which nobody reads.
    """
    cdef int after = destination - source - 1
    if after < 0:
        after += call.team.size
    return <size_t> after * call.section_bytes


cdef int copy_in_pieces(Call *call, Section *section) noexcept nogil:
    """All but the own piece: nobody else reads that."""
    cdef const Partition *blocks = <const Partition *> call.details
    cdef int rank, status = writable(call, section)
    cdef char *own = region(call, section, call.team.rank)
    if status != DONE:
        return status
    for rank in range(call.team.size):
        if rank != call.team.rank:
            put(call, section, own + place_of_piece(call, call.team.rank, rank),
                call.send + blocks.begin[rank] + section.offset, part_of(blocks, section, rank))
    post(call, section, STEP_IN)
    return DONE


cdef int reduce_own_piece(Call *call, Section *section) noexcept nogil:
    cdef int status = heard_all(call, section, STEP_IN)
    if status == DONE:
        reduce_piece(call, section, NULL)
    return status


cdef void reduce_piece(Call *call, Section *section, const void **arrays) noexcept nogil:
    """The own piece of all sources at once, straight to the user.

    ``arrays``: where each rank's vector lies in a shared heap, NULL where that is staged (all are
    where ``arrays`` is NULL).

    In place the result lies before the own block and may overlap it, by less than a piece too: it
    goes through the own region then, whose own piece nobody reads. What the copy overwrites was
    read before: of every block, earlier sections and this one.
    """
    cdef const Partition *blocks = <const Partition *> call.details
    cdef int rank, mine = call.team.rank
    cdef size_t offset = blocks.begin[mine] + section.offset
    cdef size_t nbytes = part_of(blocks, section, mine)
    cdef char *out = call.recv + section.offset
    if nbytes == 0:
        return
    for rank in range(call.team.size):
        if arrays != NULL and arrays[rank] != NULL:
            call.sources[rank] = <const char *> arrays[rank] + offset
        else:
            call.sources[rank] = region(call, section, rank) + place_of_piece(call, rank, mine)
    call.sources[mine] = call.send + offset
    if blocks.in_place:
        out = region(call, section, mine) + place_of_piece(call, mine, mine)
    reduce_from(call, section,
                UNKNOWN_STORES if arrays != NULL else stores_of_others(call, section), out,
                call.team.size, nbytes)
    if blocks.in_place:
        copy_bytes(call.recv + section.offset, out, nbytes)
