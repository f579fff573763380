"""Small messages: the data travel in the flag's own cache lines, straight code, no sections.

Two kinds of slots (DESIGN rule 11). Synchronising exchanges, in which everybody reads everybody,
alternate between two slots by the count of such exchanges: who writes exchange e + 2 has seen all
ranks in e + 1, hence through with e. Rooted calls prove no such thing (a root of Bcast may run
ahead), so they have a ring of slots of their own, recycled by a nonblocking barrier per bank.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from smcoll.barrier cimport acquire_slot_waiting, publish, release_slot, take_inline_slot, wait_line
from smcoll.kernels cimport reduce_operands
from smcoll.segment cimport Line, exchange_line, rooted_line
from smcoll.team cimport DONE, NO_SLEEP, SLEEP_AT_ONCE, BankCursor, Team, next_rank
from smcoll.trees cimport to_real, to_virtual
from smcoll.waiting cimport wake_sleepers


cdef int allreduce_inline(Team *team, const char *send, char *recv, size_t nbytes,
                          size_t elements, const Operation *operation,
                          const void **sources) noexcept nogil:
    """All-read exchange: publish your vector, read everybody's, reduce in rank order.

    One dependent step (DESIGN section 6); every rank reduces in the same order, so all get the
    same bits. ``send`` and ``recv`` may be the same.
    """
    cdef int parity, i, rank, status
    cdef Line *line
    team.exchanges += 1
    parity = <int> (team.exchanges & 1)
    line = exchange_line(&team.layout, team.base, team.rank, parity)
    memcpy(line.payload, send, nbytes)
    publish(team, line, team.exchanges)
    sources[team.rank] = line.payload
    for i in range(1, team.size):
        rank = next_rank(team, i)
        line = exchange_line(&team.layout, team.base, rank, parity)
        status = wait_line(team, line, team.exchanges, rank)
        if status != DONE:
            return status
        sources[rank] = line.payload
    reduce_operands(operation, recv, sources, team.size, elements)
    return DONE


cdef int bcast_inline(Team *team, char *buffer, size_t nbytes, int root,
                      const TreeView *tree) noexcept nogil:
    """Fan-out tree (GS 3.3): a child reads its parent's line; one with children passes it on."""
    cdef BankCursor slot
    cdef uint64_t value = take_inline_slot(team, &slot)
    cdef int v = to_virtual(team.rank, root, team.size)
    cdef Line *own = rooted_line(&team.layout, team.base, team.rank, slot.bank, slot.slot)
    cdef Line *line
    cdef int parent, status
    if v != 0:
        parent = to_real(tree.parent[v], root, team.size)
        line = rooted_line(&team.layout, team.base, parent, slot.bank, slot.slot)
        team.may_sleep = team.sleeping
        status = wait_line(team, line, value, parent)
        team.may_sleep = NO_SLEEP
        if status != DONE:
            return status
        memcpy(buffer, line.payload, nbytes)
    if tree.children[v] > 0:
        status = acquire_slot_waiting(team, &slot)
        if status != DONE:
            return status
        memcpy(own.payload, buffer, nbytes)
        publish(team, own, value)
        if team.sleeping != NO_SLEEP:
            wake_sleepers(team, &own.flag)
    release_slot(team, &slot)
    return DONE


cdef int reduce_inline(Team *team, const char *send, char *recv, size_t nbytes, size_t elements,
                       const Operation *operation, int root, const TreeView *tree,
                       const void **sources) noexcept nogil:
    """Fan-in tree (GS 3.2): a parent reduces its children's lines onto its own data."""
    cdef BankCursor slot
    cdef uint64_t value = take_inline_slot(team, &slot)
    cdef int v = to_virtual(team.rank, root, team.size)
    cdef Line *own = rooted_line(&team.layout, team.base, team.rank, slot.bank, slot.slot)
    cdef Line *line
    cdef int i, child, status
    sources[0] = send
    for i in range(tree.children[v]):
        child = to_real(tree.first_child[v] + i, root, team.size)
        line = rooted_line(&team.layout, team.base, child, slot.bank, slot.slot)
        status = wait_line(team, line, value, child)
        if status != DONE:
            return status
        sources[1 + i] = line.payload
    if v == 0:
        reduce_operands(operation, recv, sources, 1 + tree.children[v], elements)
    else:
        # Who is a whole ring ahead of a leader that waits for the network leaves it the CPU.
        if team.wakes_for_banks:
            team.may_sleep = SLEEP_AT_ONCE
        status = acquire_slot_waiting(team, &slot)
        team.may_sleep = NO_SLEEP
        if status != DONE:
            return status
        reduce_operands(operation, own.payload, sources, 1 + tree.children[v], elements)
        publish(team, own, value)
    release_slot(team, &slot)
    return DONE
