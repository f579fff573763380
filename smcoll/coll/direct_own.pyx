"""Reduce_scatter and Scan on arrays where they lie: every rank reduces what it gets itself.

As in ``direct``, but nobody writes into another rank's array: only where operands lie is published.
A rank whose result overlaps its operand (in place) stages that: others may still have to read what
the result overwrites. Operands are combined in rank order.
"""

from smcoll.base.kernels cimport reduce_operands
from smcoll.coll.peer_buffers cimport (
    PeerBuffers, end_in_agreement, learn_buffers, own_offset, publish_buffers,
)
from smcoll.coll.pipeline cimport (
    ALL_STORE, SOME_STORE, STEP_IN, Call, Section, complete, heard, occupy, plan_call,
)
from smcoll.coll.reduce_scatter cimport (
    Partition, copy_in_pieces, piece_of_block, reduce_piece, reduce_scatter_direct,
)
from smcoll.coll.scan cimport (
    copy_in_for_higher, operands_of, reduce_vectors, scan_chain, scan_direct,
)
from smcoll.memory.heap cimport STAGED
from smcoll.sync.team cimport DONE, Team


# Where each rank's operand lies, NULL where it is staged: behind the scratch for a reduction.
cdef inline const void **operand_addresses(Call *call) noexcept nogil:
    return call.sources + call.team.size


cdef int exchange_operands(Call *call, size_t operand_bytes, size_t result_bytes) noexcept nogil:
    """Publish where our operand lies, and learn it from all."""
    cdef Team *team = call.team
    cdef PeerBuffers buffers
    cdef bint overlap = (call.recv != NULL and call.send < call.recv + result_bytes
                         and call.recv < call.send + operand_bytes)
    buffers.recv = STAGED
    buffers.send = STAGED if overlap else own_offset(team, call.send, operand_bytes)
    publish_buffers(team, &buffers, team.nbytes, call.staged_by_all)
    operand_addresses(call)[team.rank] = call.send if buffers.send != STAGED else NULL
    return learn_buffers(team, operand_bytes, 0, operand_addresses(call), NULL, NULL,
                         call.staged_by_all)


cdef int ranks_that_stage(Call *call) noexcept nogil:
    cdef int rank, count = 0
    for rank in range(call.team.size):
        count += operand_addresses(call)[rank] == NULL
    return count


# Has every rank of the first `ranks` that stages its operand posted it?
cdef int heard_staged(Call *call, Section *section, int ranks) noexcept nogil:
    cdef int status
    while section.progress < ranks:
        if section.progress != call.team.rank and operand_addresses(call)[section.progress] == NULL:
            status = heard(call, section, section.progress, STEP_IN)
            if status != DONE:
                return status
        section.progress += 1
    return DONE


# ---------------------------------------------------------------------- reduce-scatter

cdef api int reduce_scatter_shared_heap(Call *call) noexcept nogil:
    """Every rank reduces its own block of all vectors, straight to its result."""
    cdef const Partition *blocks = <const Partition *> call.details
    cdef Team *team = call.team
    cdef int rank, staging, status
    cdef size_t begin = blocks.begin[team.rank]
    cdef size_t nbytes = blocks.begin[team.rank + 1] - begin
    status = exchange_operands(call, blocks.begin[team.size], nbytes)
    if status != DONE:
        return status
    staging = ranks_that_stage(call)
    if staging == team.size:
        return reduce_scatter_direct(call)
    team.direct_bytes += nbytes * <size_t> (team.size - staging - (
        operand_addresses(call)[team.rank] != NULL))
    if staging == 0:
        for rank in range(team.size):
            call.sources[rank] = <const char *> operand_addresses(call)[rank] + begin
        if nbytes > 0:
            reduce_operands(call.operation, call.recv, call.sources, team.size,
                            nbytes // call.element_size)
        return end_in_agreement(team)
    call.nbytes = blocks.longest
    plan_call(call, 2, piece_of_block(team.size, call.plan.section_bytes, call.element_size),
              ALL_STORE)
    occupy(call, <size_t> call.team.size * call.section_bytes)
    call.phase[0] = stage_pieces
    call.phase[1] = reduce_own_piece
    return complete_in_agreement(call)


cdef int complete_in_agreement(Call *call) noexcept nogil:
    """Who returns may change its array: not before all that read it are through."""
    cdef int status = complete(call)
    return end_in_agreement(call.team) if status == DONE else status


cdef int stage_pieces(Call *call, Section *section) noexcept nogil:
    if operand_addresses(call)[call.team.rank] != NULL:
        return DONE
    return copy_in_pieces(call, section)


cdef int reduce_own_piece(Call *call, Section *section) noexcept nogil:
    cdef int status = heard_staged(call, section, call.team.size)
    if status == DONE:
        reduce_piece(call, section, operand_addresses(call))
    return status


# ---------------------------------------------------------------------- scan

cdef api int scan_shared_heap(Call *call) noexcept nogil:
    """Every rank reduces the vectors of the ranks before it."""
    cdef Team *team = call.team
    cdef int rank, staging, operands = operands_of(team.rank, call.exclusive)
    cdef int status = exchange_operands(call, call.nbytes, call.nbytes)
    if status != DONE:
        return status
    staging = ranks_that_stage(call)
    if staging == team.size:
        # As where ranks share no heaps.
        if team.size > 2:
            return scan_chain(call)
        return scan_direct(call)
    for rank in range(team.rank):
        if operand_addresses(call)[rank] != NULL:
            team.direct_bytes += call.nbytes
    if staging == 0:
        for rank in range(team.rank):
            call.sources[rank] = operand_addresses(call)[rank]
        call.sources[team.rank] = call.send
        if operands > 0:
            reduce_operands(call.operation, call.recv, call.sources, operands,
                            call.nbytes // call.element_size)
        return end_in_agreement(team)
    plan_call(call, 2, call.plan.section_bytes, SOME_STORE)
    call.phase[0] = stage_for_higher
    call.phase[1] = reduce_prefix
    return complete_in_agreement(call)


cdef int stage_for_higher(Call *call, Section *section) noexcept nogil:
    if operand_addresses(call)[call.team.rank] != NULL:
        return DONE
    return copy_in_for_higher(call, section)


cdef int reduce_prefix(Call *call, Section *section) noexcept nogil:
    cdef int status = heard_staged(call, section, call.team.rank)
    if status == DONE:
        reduce_vectors(call, section, operand_addresses(call))
    return status
