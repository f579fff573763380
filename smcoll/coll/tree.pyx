"""Bcast, Reduce, Allreduce and Barrier along trees: one walk up, one walk down, whatever the tree.

Two kinds of trees. GS's have a radix and follow the ranks' numbers (``sync.trees``); LHS's follow
the hardware (``sync.domains``): n-ary ones, and broadcasts in one or two stages. An algorithm says
which tree leads up and which leads down; all else is the same.

============  ==================================  ================================================
step          posted by                           heard by, before it reads the poster's region
============  ==================================  ================================================
PARTIAL       a child, after its subtree is       its parent in the tree up
              reduced in its region
RESULT        the root, then whoever passes the   its children in the tree down
              result on through its region
============  ==================================  ================================================

A rank writes the result over its partial result. The result contains the partial one, so the parent
has read that already.
"""

from libc.stdint cimport uint64_t

from smcoll.barrier cimport (
    acquire_slot_waiting, advance_cursor, post_line, release_slot, take_inline_slot, wait_line,
)
from smcoll.base.atomics cimport store_release
from smcoll.base.kernels cimport copy_bytes, reduce_operands
from smcoll.coll.pipeline cimport (
    OTHER_STORES, ROOT_STORES, SOME_STORE, STEP_RESULT, complete, deliver, expect_next, heard,
    offer, plan_call, post, put, reduce_from, reduce_into, region, stores_of, writable,
)
from smcoll.segment cimport Line, rooted_line, segment_line
from smcoll.sync.domains cimport Neighbours, n_ary_tree, one_stage_tree, two_stage_tree
from smcoll.sync.team cimport DONE, BankCursor, Team
from smcoll.sync.trees cimport TreeView, to_real, to_virtual


# ---------------------------------------------------------------------- this rank's place in a tree

cdef inline void radix_tree(const TreeView *tree, int rank, int root,
                            Neighbours *out) noexcept nogil:
    """A tree of GS's, from ``root`` on in the order of the ranks."""
    cdef int v = to_virtual(rank, root, tree.ranks), i
    out.parent = -1 if v == 0 else to_real(tree.parent[v], root, tree.ranks)
    out.count = tree.children[v]
    for i in range(out.count):
        out.child[i] = to_real(tree.first_child[v] + i, root, tree.ranks)


cdef void up_by_radix(Call *call, int root) noexcept nogil:
    """Up to ``root``, a parent combining all of its children at once (GS 3.2)."""
    call.up.child = call.team.scratch
    radix_tree(call.plan.fan_in, call.team.rank, root, &call.up)
    call.at_once = call.up.count


cdef void up_n_ary(Call *call, int root) noexcept nogil:
    """Up to ``root``, a parent combining n - 1 children in each round (LHS 2.2)."""
    call.up.child = call.team.scratch
    n_ary_tree(call.team.domains, call.team.rank, root, call.plan.arity, &call.up)
    call.at_once = call.plan.arity - 1


cdef void down_by_radix(Call *call, int root) noexcept nogil:
    call.down.child = call.team.scratch + call.team.size
    radix_tree(call.plan.fan_out, call.team.rank, root, &call.down)


cdef void down_n_ary(Call *call, int root) noexcept nogil:
    call.down.child = call.team.scratch + call.team.size
    n_ary_tree(call.team.domains, call.team.rank, root, call.plan.arity, &call.down)


cdef void down_in_one_stage(Call *call, int root) noexcept nogil:
    call.down.child = call.team.scratch + call.team.size
    one_stage_tree(call.team.domains, call.team.rank, root, &call.down)


cdef void down_in_two_stages(Call *call, int root) noexcept nogil:
    call.down.child = call.team.scratch + call.team.size
    two_stage_tree(call.team.domains, call.team.rank, root, &call.down)


# ---------------------------------------------------------------------- Bcast

cdef int bcast_fan_out(Call *call) noexcept nogil:
    """Fan-out tree of radix m (GS 3.3). ``send`` and ``recv`` are the buffer, on every rank."""
    down_by_radix(call, call.root)
    return broadcast(call)


cdef int bcast_n_ary(Call *call) noexcept nogil:
    """Down an n-ary tree: a child copies its parent's region, its own children copy its."""
    down_n_ary(call, call.root)
    return broadcast(call)


cdef int bcast_one_stage(Call *call) noexcept nogil:
    """All ranks copy the root's region at once."""
    down_in_one_stage(call, call.root)
    return broadcast(call)


cdef int bcast_two_stage(Call *call) noexcept nogil:
    """A leader in each domain copies the root's region, the domain's other ranks the leader's."""
    down_in_two_stages(call, call.root)
    return broadcast(call)


cdef int broadcast(Call *call) noexcept nogil:
    if call.in_lines:
        return broadcast_inline(call)
    plan_call(call, 1, call.plan.section_bytes, ROOT_STORES)
    call.phase[0] = offer_at_root if call.team.rank == call.root else pass_down
    return complete(call)


cdef int offer_at_root(Call *call, Section *section) noexcept nogil:
    """The user's data into the own region, for the children to read."""
    if call.down.count == 0:
        # Alone on its node, in a call over several.
        return DONE
    return offer(call, section, STEP_RESULT)


cdef int pass_down(Call *call, Section *section) noexcept nogil:
    """The parent's result: for the own children first, then for the user."""
    cdef char *own = region(call, section, call.team.rank)
    cdef const char *source = own
    cdef int holder = call.team.rank, status
    if call.down.parent >= 0:
        status = heard(call, section, call.down.parent, STEP_RESULT)
        if status != DONE:
            return status
        expect_next(call, section, call.down.parent)
        source = region(call, section, call.down.parent)
        holder = call.down.parent
        if call.down.count > 0:
            status = writable(call, section)
            if status != DONE:
                return status
            put(call, section, own, source, section.nbytes)
            post(call, section, STEP_RESULT)
            source = own
            holder = call.team.rank
    deliver(call, section, holder, section.offset, source, section.nbytes)
    return DONE


cdef int broadcast_inline(Call *call) noexcept nogil:
    """In the flag lines: a child reads its parent's, one with children passes it on.

    A ``rooted_line`` is flag and payload of a short call that has a root, in its owner's control
    pages. The lines are a ring of slots in banks, as the segments are.
    """
    cdef Team *team = call.team
    cdef BankCursor slot
    cdef uint64_t value = take_inline_slot(team, &slot)
    cdef Line *own = rooted_line(&team.layout, team.base, team.rank, slot.bank, slot.slot)
    cdef Line *line
    cdef int status
    if call.down.parent >= 0:
        line = rooted_line(&team.layout, team.base, call.down.parent, slot.bank, slot.slot)
        status = wait_line(team, line, value, call.down.parent)
        if status != DONE:
            return status
        copy_bytes(call.recv, line.payload, call.nbytes)
    if call.down.count > 0:
        status = acquire_slot_waiting(team, &slot)
        if status != DONE:
            return status
        # The root's data lie in `recv`, too: a Bcast has one buffer, an Allreduce has reduced into
        # it.
        copy_bytes(own.payload, call.recv, call.nbytes)
        post_line(team, own, value)
    release_slot(team, &slot)
    return DONE


# ---------------------------------------------------------------------- Reduce

cdef int reduce_fan_in(Call *call) noexcept nogil:
    """Fan-in tree of radix n (GS 3.2), a new segment for each section."""
    up_by_radix(call, call.root)
    return reduce_to_root(call)


cdef int reduce_n_ary(Call *call) noexcept nogil:
    """Up an n-ary tree."""
    up_n_ary(call, call.root)
    return reduce_to_root(call)


cdef int reduce_to_root(Call *call) noexcept nogil:
    if call.in_lines:
        return reduce_inline(call)
    plan_call(call, 1, call.plan.section_bytes, OTHER_STORES)
    call.phase[0] = reduce_at_root if call.team.rank == call.root else reduce_up
    return complete(call)


cdef int reduce_at_root(Call *call, Section *section) noexcept nogil:
    """The root's result goes straight to the user."""
    return combine_children(call, section, call.recv + section.offset, False)


cdef int reduce_up(Call *call, Section *section) noexcept nogil:
    """The own subtree into the own region, for the parent, or at the root for everybody."""
    cdef int status = writable(call, section)
    if status != DONE:
        return status
    status = combine_children(call, section, region(call, section, call.team.rank), True)
    if status != DONE:
        return status
    post(call, section, STEP_RESULT if call.up.parent < 0 else STEP_PARTIAL)
    return DONE


cdef int combine_children(Call *call, Section *section, char *out,
                          bint to_region) noexcept nogil:
    """Round by round the children's data onto what there is, at first the user's data."""
    cdef int children = call.up.count, filled, status
    cdef const char *user = call.send + section.offset
    if children == 0:
        if to_region:
            put(call, section, out, user, section.nbytes)
        else:
            copy_bytes(out, user, section.nbytes)
        return DONE
    while section.progress < children:
        status = heard(call, section, call.up.child[section.progress], STEP_PARTIAL)
        if status != DONE:
            return status
        filled = section.progress % call.at_once + 1
        call.sources[filled] = region(call, section, call.up.child[section.progress])
        section.progress += 1
        if filled == call.at_once or section.progress == children:
            call.sources[0] = user if section.progress <= call.at_once else out
            if call.team.size == 2 and call.up.child[0] == 0:
                # In rank order, as where the arrays lie in shared heaps (direct.pyx).
                call.sources[0], call.sources[1] = call.sources[1], call.sources[0]
            if to_region:
                reduce_into(call, section, out, 1 + filled, section.nbytes)
            else:
                # Of more children the first stands for all.
                reduce_from(call, section, stores_of(call, section, call.up.child[0]), out,
                            1 + filled, section.nbytes)
    return DONE


cdef int reduce_inline(Call *call) noexcept nogil:
    """In the flag lines: the children's data onto the own ones, in rounds."""
    cdef Team *team = call.team
    cdef BankCursor slot
    cdef uint64_t value = take_inline_slot(team, &slot)
    cdef Line *own = rooted_line(&team.layout, team.base, team.rank, slot.bank, slot.slot)
    cdef Line *line
    cdef char *out = call.recv
    cdef int i, status, filled = 0
    if call.up.parent >= 0:
        out = own.payload
        status = acquire_slot_waiting(team, &slot)
        if status != DONE:
            return status
    call.sources[0] = call.send
    for i in range(call.up.count):
        line = rooted_line(&team.layout, team.base, call.up.child[i], slot.bank, slot.slot)
        status = wait_line(team, line, value, call.up.child[i])
        if status != DONE:
            return status
        filled += 1
        call.sources[filled] = line.payload
        if filled == call.at_once or i == call.up.count - 1:
            reduce_operands(call.operation, out, call.sources, 1 + filled, call.elements)
            call.sources[0] = out
            filled = 0
    if call.up.count == 0:
        copy_bytes(out, call.send, call.nbytes)
    if call.up.parent >= 0:
        post_line(team, own, value)
    release_slot(team, &slot)
    return DONE


# ---------------------------------------------------------------------- Allreduce

cdef int allreduce_fan_in_fan_out(Call *call) noexcept nogil:
    """Fan-in of radix n to rank 0, fan-out of radix m from it (GS 3.1)."""
    up_by_radix(call, 0)
    down_by_radix(call, 0)
    return reduce_and_broadcast(call)


cdef int allreduce_reduce_broadcast(Call *call) noexcept nogil:
    """Up an n-ary tree to rank 0, down in two stages (LHS 2.2)."""
    up_n_ary(call, 0)
    down_in_two_stages(call, 0)
    return reduce_and_broadcast(call)


cdef int reduce_and_broadcast(Call *call) noexcept nogil:
    cdef int status
    if call.in_lines:
        # One slot for the way up, one for the way down.
        status = reduce_inline(call)
        return broadcast_inline(call) if status == DONE else status
    plan_call(call, 2, call.plan.section_bytes, SOME_STORE)
    call.phase[0] = reduce_up
    call.phase[1] = pass_down
    return complete(call)


# ---------------------------------------------------------------------- Barrier

cdef int barrier_tree(Call *call) noexcept nogil:
    """Fan-in to rank 0, fan-out from it (GS 3.1 without data)."""
    up_by_radix(call, 0)
    down_by_radix(call, 0)
    return up_and_down(call)


cdef int barrier_hierarchical(Call *call) noexcept nogil:
    """A reduce-broadcast without data (LHS 2.6)."""
    up_n_ary(call, 0)
    down_in_two_stages(call, 0)
    return up_and_down(call)


cdef int up_and_down(Call *call) noexcept nogil:
    """On the flags of one segment."""
    cdef Team *team = call.team
    cdef BankCursor slot = team.segments
    cdef Line *own = segment_line(&team.layout, team.base, team.rank, slot.bank, slot.slot)
    cdef uint64_t up = team.tick + STEP_PARTIAL, down = team.tick + STEP_RESULT
    cdef int i, status
    team.tick += 2
    advance_cursor(&team.layout, &team.segments)
    status = acquire_slot_waiting(team, &slot)
    if status != DONE:
        return status
    for i in range(call.up.count):
        status = wait_line(team, segment_line(&team.layout, team.base, call.up.child[i], slot.bank,
                                              slot.slot), up, call.up.child[i])
        if status != DONE:
            return status
    if call.up.parent >= 0:
        post_line(team, own, up)
        status = wait_line(team, segment_line(&team.layout, team.base, call.down.parent, slot.bank,
                                              slot.slot), down, call.down.parent)
        if status != DONE:
            return status
        # The parent may be comparing the rest of the line just now.
        store_release(&own.flag, down)
    else:
        post_line(team, own, down)
    release_slot(team, &slot)
    return DONE
