"""Trees that follow the hardware (Li, Hoefler & Snir 2013, 2.2): Bcast, Reduce, Allreduce, Barrier.

Reductions go up an n-ary tree, results come down one, or in one or two stages. Who is whose parent
is said in ``domains``; everything here is the same for all of these trees.

============  ==================================  ================================================
step          posted by                           heard by, before it reads the poster's region
============  ==================================  ================================================
PARTIAL       a child, after its subtree is       its parent in the tree up
              reduced in its region
RESULT        the root, then whoever passes the   its children in the tree down
              result on through its region
============  ==================================  ================================================

A rank overwrites its partial result by the result: its parent has read the partial one, which is
part of the result that has arrived.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from smcoll.atomics cimport store_release
from smcoll.barrier cimport (
    acquire_slot_waiting, advance_cursor, publish, release_slot, take_inline_slot, wait_line,
)
from smcoll.domains cimport n_ary_tree, one_stage_tree, two_stage_tree
from smcoll.kernels cimport reduce_operands
from smcoll.pipeline cimport complete, deliver, heard, plan_call, post, region, writable
from smcoll.segment cimport Line, rooted_line, segment_line
from smcoll.team cimport DONE, BankCursor


# ---------------------------------------------------------------------- Bcast

cdef int bcast_n_ary(Call *call, bint pipelined, size_t section_bytes) noexcept nogil:
    """Down an n-ary tree: a child copies its parent's region, its own children copy its."""
    call.down.child = call.team.scratch
    n_ary_tree(call.team.domains, call.team.rank, call.root, call.arity, &call.down)
    return broadcast_down(call, pipelined, section_bytes)


cdef int bcast_one_stage(Call *call, bint pipelined, size_t section_bytes) noexcept nogil:
    """All ranks copy the root's region at once."""
    call.down.child = call.team.scratch
    one_stage_tree(call.team.domains, call.team.rank, call.root, &call.down)
    return broadcast_down(call, pipelined, section_bytes)


cdef int bcast_two_stage(Call *call, bint pipelined, size_t section_bytes) noexcept nogil:
    """A leader in each domain copies the root's region, the domain's other ranks the leader's."""
    call.down.child = call.team.scratch
    two_stage_tree(call.team.domains, call.team.rank, call.root, &call.down)
    return broadcast_down(call, pipelined, section_bytes)


cdef inline int broadcast_down(Call *call, bint pipelined, size_t section_bytes) noexcept nogil:
    plan_call(call, 1, section_bytes, pipelined, False)
    call.phase[0] = offer_at_root if call.team.rank == call.root else pass_down
    return complete(call)


cdef int offer_at_root(Call *call, Section *section) noexcept nogil:
    """The user's data into the own region, for the children to read."""
    cdef int status = writable(call, section)
    if status != DONE:
        return status
    memcpy(region(call, section, call.team.rank), call.send + section.offset, section.nbytes)
    post(call, section, STEP_RESULT)
    return DONE


cdef int pass_down(Call *call, Section *section) noexcept nogil:
    """The parent's result: for the own children first, then for the user."""
    cdef char *own = region(call, section, call.team.rank)
    cdef const char *source = own
    cdef int status
    if call.down.parent >= 0:
        status = heard(call, section, call.down.parent, STEP_RESULT)
        if status != DONE:
            return status
        source = region(call, section, call.down.parent)
        if call.down.count > 0:
            status = writable(call, section)
            if status != DONE:
                return status
            memcpy(own, source, section.nbytes)
            post(call, section, STEP_RESULT)
            source = own
    deliver(call, section.offset, source, section.nbytes)
    return DONE


# ---------------------------------------------------------------------- Reduce

cdef void grow_tree(Call *call, int root) noexcept nogil:
    """This rank's place in the n-ary tree up to ``root``."""
    call.up.child = call.team.scratch
    n_ary_tree(call.team.domains, call.team.rank, root, call.arity, &call.up)


cdef int reduce_n_ary(Call *call, bint pipelined, size_t section_bytes) noexcept nogil:
    """Up an n-ary tree; the root's result goes straight to the user."""
    grow_tree(call, call.root)
    plan_call(call, 1, section_bytes, pipelined, False)
    call.phase[0] = reduce_at_root if call.team.rank == call.root else reduce_up
    return complete(call)


cdef int reduce_at_root(Call *call, Section *section) noexcept nogil:
    return combine_children(call, section, call.recv + section.offset)


cdef int reduce_up(Call *call, Section *section) noexcept nogil:
    """The own subtree into the own region, for the parent, or at the root for everybody."""
    cdef int status = writable(call, section)
    if status != DONE:
        return status
    status = combine_children(call, section, region(call, section, call.team.rank))
    if status != DONE:
        return status
    post(call, section, STEP_RESULT if call.up.parent < 0 else STEP_PARTIAL)
    return DONE


cdef int combine_children(Call *call, Section *section, char *out) noexcept nogil:
    """Round by round: n - 1 children's data onto what there is, at first the user's data."""
    cdef int children = call.up.count, family = call.arity - 1, filled, status
    cdef const char *user = call.send + section.offset
    if children == 0:
        memcpy(out, user, section.nbytes)
        return DONE
    while section.progress < children:
        status = heard(call, section, call.up.child[section.progress], STEP_PARTIAL)
        if status != DONE:
            return status
        filled = section.progress % family + 1
        call.sources[filled] = region(call, section, call.up.child[section.progress])
        section.progress += 1
        if filled == family or section.progress == children:
            call.sources[0] = user if section.progress <= family else out
            reduce_operands(call.operation, out, call.sources, 1 + filled, section.elements)
    return DONE


# ---------------------------------------------------------------------- Allreduce

cdef int allreduce_reduce_broadcast(Call *call, bint pipelined,
                                    size_t section_bytes) noexcept nogil:
    """Up an n-ary tree to rank 0, down in two stages (LHS 2.2)."""
    grow_tree(call, 0)
    call.down.child = call.team.scratch + call.team.size
    two_stage_tree(call.team.domains, call.team.rank, 0, &call.down)
    plan_call(call, 2, section_bytes, pipelined, False)
    call.phase[0] = reduce_up
    call.phase[1] = pass_down
    return complete(call)


# ---------------------------------------------------------------------- short messages

cdef int bcast_inline_down(Team *team, char *buffer, size_t nbytes,
                           const Neighbours *down) noexcept nogil:
    """The same in the flag lines: a child reads its parent's, one with children passes it on."""
    cdef BankCursor slot
    cdef uint64_t value = take_inline_slot(team, &slot)
    cdef Line *own = rooted_line(&team.layout, team.base, team.rank, slot.bank, slot.slot)
    cdef Line *line
    cdef int status
    if down.parent >= 0:
        line = rooted_line(&team.layout, team.base, down.parent, slot.bank, slot.slot)
        status = wait_line(team, line, value, down.parent)
        if status != DONE:
            return status
        memcpy(buffer, line.payload, nbytes)
    if down.count > 0:
        status = acquire_slot_waiting(team, &slot)
        if status != DONE:
            return status
        memcpy(own.payload, buffer, nbytes)
        publish(team, own, value)
    release_slot(team, &slot)
    return DONE


cdef int reduce_inline_up(Team *team, const char *send, char *recv, size_t nbytes, size_t elements,
                          const Operation *operation, const Neighbours *up, int arity,
                          const void **sources) noexcept nogil:
    """The same in the flag lines: children's lines onto the own data, n - 1 a round."""
    cdef BankCursor slot
    cdef uint64_t value = take_inline_slot(team, &slot)
    cdef Line *own = rooted_line(&team.layout, team.base, team.rank, slot.bank, slot.slot)
    cdef Line *line
    cdef char *out = recv
    cdef int i, status, filled = 0, family = arity - 1
    if up.parent >= 0:
        out = own.payload
        status = acquire_slot_waiting(team, &slot)
        if status != DONE:
            return status
    sources[0] = send
    for i in range(up.count):
        line = rooted_line(&team.layout, team.base, up.child[i], slot.bank, slot.slot)
        status = wait_line(team, line, value, up.child[i])
        if status != DONE:
            return status
        filled += 1
        sources[filled] = line.payload
        if filled == family or i == up.count - 1:
            reduce_operands(operation, out, sources, 1 + filled, elements)
            sources[0] = out
            filled = 0
    if up.count == 0:
        memcpy(out, send, nbytes)
    if up.parent >= 0:
        publish(team, own, value)
    release_slot(team, &slot)
    return DONE


# ---------------------------------------------------------------------- Barrier

cdef int barrier_hierarchical(Team *team, int arity) noexcept nogil:
    """A reduce-broadcast without data (LHS 2.6), on the flags of one segment."""
    cdef BankCursor slot = team.segments
    cdef Line *own = segment_line(&team.layout, team.base, team.rank, slot.bank, slot.slot)
    cdef uint64_t arrived = team.tick + STEP_PARTIAL, released = team.tick + STEP_RESULT
    cdef Neighbours up, down
    cdef int i, status
    up.child = team.scratch
    down.child = team.scratch + team.size
    n_ary_tree(team.domains, team.rank, 0, arity, &up)
    two_stage_tree(team.domains, team.rank, 0, &down)
    team.tick += 2
    advance_cursor(&team.layout, &team.segments)
    status = acquire_slot_waiting(team, &slot)
    if status != DONE:
        return status
    for i in range(up.count):
        status = wait_line(team, segment_line(&team.layout, team.base, up.child[i], slot.bank,
                                              slot.slot), arrived, up.child[i])
        if status != DONE:
            return status
    if up.parent >= 0:
        publish(team, own, arrived)
        status = wait_line(team, segment_line(&team.layout, team.base, down.parent, slot.bank,
                                              slot.slot), released, down.parent)
        if status != DONE:
            return status
        # The parent may be comparing the rest of the line just now.
        store_release(&own.flag, released)
    else:
        publish(team, own, released)
    release_slot(team, &slot)
    return DONE
