"""Scan and Exscan; nobody waits for a higher rank. Operands are combined in rank order.

``direct``: every rank posts its vector and reduces those of the ranks before it. One dependent
step, as in the all-read Allreduce; the ranks together read p (p - 1) / 2 vectors.

``chain``: every rank posts its vector reduced onto what the rank before it has posted. p - 1
dependent steps, and as many vectors to read. Where ranks share cores it is the work that counts:
lower ranks run ahead, and who has a turn finds several calls, or sections, to go on with.
"""

from libc.stdint cimport int64_t, uint64_t

from smcoll.barrier cimport (
    acquire_slot_waiting, post_line, release_slot, take_inline_slot, wait_line,
)
from smcoll.base.kernels cimport Operation, copy_bytes, copy_result, reduce_operands
from smcoll.coll.pipeline cimport (
    SOME_STORE, STEP_IN, Section, complete, heard, offer, plan_call, post, put, reduce_for_all,
    reduce_from, region, stores_of, writable,
)
from smcoll.coll.stores cimport UNKNOWN_STORES, end_reading, start_reading
from smcoll.segment cimport Line, rooted_line
from smcoll.sync.team cimport DONE, BankCursor, Team


cdef int scan_direct_inline(Call *call) noexcept nogil:
    """Short vectors travel in the inline slots of rooted calls: nothing here proves that the
    higher ranks have read, so the slots are recycled by their banks' barriers."""
    cdef Team *team = call.team
    cdef int operands = operands_of(team.rank, call.exclusive)
    cdef BankCursor slot
    cdef uint64_t value = take_inline_slot(team, &slot)
    cdef Line *line
    cdef int rank, status
    if team.rank < team.size - 1:
        status = acquire_slot_waiting(team, &slot)
        if status != DONE:
            return status
        line = rooted_line(&team.layout, team.base, team.rank, slot.bank, slot.slot)
        copy_bytes(line.payload, call.send, call.nbytes)
        post_line(team, line, value)
    for rank in range(team.rank):
        line = rooted_line(&team.layout, team.base, rank, slot.bank, slot.slot)
        status = wait_line(team, line, value, rank)
        if status != DONE:
            return status
        call.sources[rank] = line.payload
    call.sources[team.rank] = call.send
    if operands > 0:
        reduce_operands(call.operation, call.recv, call.sources, operands, call.elements)
    release_slot(team, &slot)
    return DONE


cdef int scan_chain_inline(Call *call) noexcept nogil:
    """In the same slots: a rank hears its neighbour only, and posts for the other one."""
    cdef Team *team = call.team
    cdef BankCursor slot
    cdef uint64_t value = take_inline_slot(team, &slot)
    cdef const char *before = NULL
    cdef char *prefix = NULL
    cdef Line *line
    cdef int status
    if team.rank > 0:
        line = rooted_line(&team.layout, team.base, team.rank - 1, slot.bank, slot.slot)
        status = wait_line(team, line, value, team.rank - 1)
        if status != DONE:
            return status
        before = line.payload
    if team.rank < team.size - 1:
        status = acquire_slot_waiting(team, &slot)
        if status != DONE:
            return status
        line = rooted_line(&team.layout, team.base, team.rank, slot.bank, slot.slot)
        prefix = line.payload
        reduce_onto(call.operation, prefix, before, call.send, call.nbytes, call.elements)
        post_line(team, line, value)
    take_result(call.operation, call.recv, before, prefix, call.send, call.nbytes, call.elements,
                call.exclusive)
    release_slot(team, &slot)
    return DONE


cdef inline void reduce_onto(const Operation *operation, char *prefix, const char *before,
                             const char *send, size_t nbytes, size_t elements) noexcept nogil:
    """The own vector onto those of the ranks before; alone on rank 0."""
    cdef const void *operands[2]
    if before == NULL:
        copy_bytes(prefix, send, nbytes)
        return
    operands[0] = before
    operands[1] = send
    reduce_operands(operation, prefix, operands, 2, elements)


cdef inline void take_result(const Operation *operation, char *recv, const char *before,
                             const char *prefix, const char *send, size_t nbytes,
                             size_t elements, bint exclusive) noexcept nogil:
    """``prefix``: NULL on the last rank, which posts none."""
    if exclusive:
        if before != NULL:
            copy_bytes(recv, before, nbytes)
    elif prefix != NULL:
        copy_bytes(recv, prefix, nbytes)
    else:
        reduce_onto(operation, recv, before, send, nbytes, elements)


cdef int scan_chain(Call *call) noexcept nogil:
    """Section by section through the data regions."""
    plan_call(call, 1, call.plan.section_bytes, SOME_STORE)
    call.phase[0] = pass_prefix_on
    return complete(call)


cdef int pass_prefix_on(Call *call, Section *section) noexcept nogil:
    cdef int status, kind = UNKNOWN_STORES, mine = call.team.rank
    cdef int64_t began
    cdef const char *send = call.send + section.offset
    cdef char *recv = call.recv + section.offset
    cdef const char *before = NULL
    cdef char *prefix = NULL
    if mine > 0:
        status = heard(call, section, mine - 1, STEP_IN)
        if status != DONE:
            return status
        before = region(call, section, mine - 1)
    if mine < call.team.size - 1:
        status = writable(call, section)
        if status != DONE:
            return status
        prefix = region(call, section, mine)
        if before == NULL:
            put(call, section, prefix, send, section.nbytes)
        else:
            # An exclusive result comes there afterwards.
            call.sources[0] = before
            call.sources[1] = send
            reduce_for_all(call, section, recv, prefix, 2, section.nbytes)
        post(call, section, STEP_IN)
        if before != NULL and not call.exclusive:
            return DONE
    if before != NULL:
        kind = stores_of(call, section, mine - 1)
    began = start_reading(call.chosen, kind, section.nbytes, section.is_fresh)
    take_result(call.operation, recv, before, prefix, send, section.nbytes, section.elements,
                call.exclusive)
    end_reading(call.chosen, kind, began, section.nbytes)
    return DONE


cdef int scan_direct(Call *call) noexcept nogil:
    """Section by section through the data regions."""
    plan_call(call, 2, call.plan.section_bytes, SOME_STORE)
    call.phase[0] = copy_in_for_higher
    call.phase[1] = reduce_prefix
    return complete(call)


cdef int copy_in_for_higher(Call *call, Section *section) noexcept nogil:
    if call.team.rank == call.team.size - 1:
        return DONE
    return offer(call, section, STEP_IN)


cdef int reduce_prefix(Call *call, Section *section) noexcept nogil:
    cdef int status
    while section.progress < call.team.rank:
        status = heard(call, section, section.progress, STEP_IN)
        if status != DONE:
            return status
        section.progress += 1
    reduce_vectors(call, section, NULL)
    return DONE


cdef void reduce_vectors(Call *call, Section *section, const void **arrays) noexcept nogil:
    """The vectors of the ranks before this one, and its own unless exclusive.

    ``arrays``: where each rank's vector lies in a shared heap, NULL where that is staged (all are
    where ``arrays`` is NULL).
    """
    cdef int rank, mine = call.team.rank, operands = operands_of(mine, call.exclusive)
    cdef int kind = UNKNOWN_STORES
    for rank in range(mine):
        if arrays != NULL and arrays[rank] != NULL:
            call.sources[rank] = <const char *> arrays[rank] + section.offset
        else:
            call.sources[rank] = region(call, section, rank)
            # Of more ranks' the last one's stands for all.
            kind = stores_of(call, section, rank)
    # In place, the own operand is read before it is overwritten, element by element.
    call.sources[mine] = call.send + section.offset
    if operands == 1:
        take_alone(call, section, kind, call.recv + section.offset, call.sources[0], section.nbytes)
    elif operands > 0:
        reduce_from(call, section, kind, call.recv + section.offset, operands, section.nbytes)


cdef inline void take_alone(Call *call, Section *section, int kind, char *out,
                            const void *source, size_t nbytes) noexcept nogil:
    """Of one vector, which is the result: copied with the stores of copies, not of reductions."""
    cdef int64_t began
    if out == source:
        return
    began = start_reading(call.chosen, kind, nbytes, section.is_fresh)
    copy_result(out, source, nbytes, False, kind)
    end_reading(call.chosen, kind, began, nbytes)
