"""Flags, the full barrier and the nonblocking barrier per bank.

Shared words and their pairing (all in the writer's own range, each with one writer):

========================  ==================================  =================================
word                      stored by                           loaded by
========================  ==================================  =================================
``Line.flag``             owner, release, after all that it   readers, acquire, before anything
                          says (data, call, signature)        that it says
bank field                owner, release, after its last      a rank that writes into the bank
                          read in the bank                    again, acquire, before it writes
``Published.call``        owner, release, after the entry     waiters in trouble, acquire, then
                                                              the entry, then once more
``Status.poison``         owner, release, after the reason    waiters in trouble, acquire
``Status.busy``           owner: a lock between its threads   waiters in trouble, when the owner
                                                              is dead; reports
========================  ==================================  =================================

The words of waits stand in ``waiting``.

Data of short messages travel in lines, of two kinds (docs/protocol.md, rule 11). Those of
synchronising exchanges, in which everybody reads everybody, alternate between two slots: who writes
exchange e + 2 has seen all ranks in e + 1, hence through with e. Rooted calls prove no such thing
(a root of Bcast may run ahead), so they have a ring of slots, recycled by a nonblocking barrier per
bank.
"""

from libc.stdint cimport uint64_t

from smcoll.base.atomics cimport acquire_reached, store_release
from smcoll.segment cimport (
    MAX_BANKS, Layout, Line, Published, bank_field, exchange_line, rank_range, rooted_line,
    segment_line, status_of,
)
from smcoll.sync.team cimport AGAIN, DONE, BankCursor, Team, next_rank
from smcoll.sync.waiting cimport init_waiting

cdef void init_team(Team *team, uint64_t start) noexcept nogil:
    """Start all counters at ``start`` and our own shared words with them.

    Before any peer may read them: the caller's agreement comes after this.
    """
    cdef int i, bank, segment, slot, kind
    cdef Published *entry
    cdef Layout *layout = &team.layout
    team.status = status_of(layout, team.base, team.rank)
    team.call = start
    team.tick = start
    team.exchanges = start
    team.rooted = start
    team.segments.kind = 0
    team.inline_slots.kind = 1
    team.segments.bank = team.segments.slot = 0
    team.inline_slots.bank = team.inline_slots.slot = 0
    team.segments.in_use = team.layout.segments
    team.inline_slots.in_use = team.layout.inline_slots
    team.segments.pass_ = team.inline_slots.pass_ = start
    for bank in range(MAX_BANKS):
        team.proven[0][bank] = team.proven[1][bank] = start - 1
    team.writer = -1
    init_waiting(team)
    for bank in range(layout.banks):
        for kind in range(2):
            store_release(bank_field(layout, team.base, team.rank, kind, bank), start)
        for segment in range(layout.segments):
            store_release(&segment_line(layout, team.base, team.rank, bank, segment).flag, start)
        for slot in range(layout.inline_slots):
            store_release(&rooted_line(layout, team.base, team.rank, bank, slot).flag, start)
    for i in range(2):
        store_release(&exchange_line(layout, team.base, team.rank, i).flag, start)
    for i in range(layout.ring_entries):
        entry = (<Published *> (rank_range(layout, team.base, team.rank) + layout.ring)) + i
        store_release(&entry.call, start)
    store_release(&team.status.current_call, start)


cdef void use_segments(Team *team, int segments) noexcept nogil:
    """Use ``segments`` segments of a bank, then the next bank: all that lies further is passed.

    A ring of few large segments stays in the caches, one of many lets ranks run ahead. Called
    before a call's first segment, alike on all ranks: no segment is in flight on this one, so it is
    through with the bank that it leaves.
    """
    cdef BankCursor *cursor = &team.segments
    cursor.in_use = segments
    if cursor.slot >= segments:
        release_bank(team, cursor)
        advance_cursor(&team.layout, cursor)


cdef int prove_bank(Team *team, const BankCursor *cursor) noexcept nogil:
    """Complete a bank's nonblocking barrier: DONE, or AGAIN with a rank still in its last round."""
    cdef Layout *layout = &team.layout
    cdef const uint64_t *field
    cdef int i, rank
    for i in range(1, team.size):
        rank = next_rank(team, i)
        field = bank_field(layout, team.base, rank, cursor.kind, cursor.bank)
        if not acquire_reached(field, cursor.pass_):
            team.awaited = field
            team.awaited_value = cursor.pass_
            team.awaited_rank = rank
            return AGAIN
    team.proven[cursor.kind][cursor.bank] = cursor.pass_
    return DONE


cdef int barrier_all_read(Team *team) noexcept nogil:
    """Every rank raises its own flag and reads all others: one dependent step.

    Where ranks share cores, the number of dependent steps is what counts: each is a turn of the run
    queue.
    """
    cdef int i, rank, status
    team.exchanges += 1
    post_line(team, line_in_exchange(team, team.rank), team.exchanges)
    for i in range(1, team.size):
        rank = next_rank(team, i)
        status = wait_line(team, line_in_exchange(team, rank), team.exchanges, rank)
        if status != DONE:
            return status
    return DONE


cdef int barrier_dissemination(Team *team) noexcept nogil:
    """In step s a rank signals rank + 2^s and waits for rank - 2^s, ceil(log2 ranks) steps."""
    cdef BankCursor slot = team.segments
    cdef Line *own = segment_line(&team.layout, team.base, team.rank, slot.bank, slot.slot)
    cdef uint64_t base = team.tick
    cdef int status, distance = 1, step = 1, source
    team.tick += 64
    advance_cursor(&team.layout, &team.segments)
    status = acquire_slot_waiting(team, &slot)
    if status != DONE:
        return status
    while distance < team.size:
        # One flag serves all steps: whoever waits for step s also takes a later one for it. The
        # rest of the line is written once: readers of an earlier step may be comparing it.
        if step == 1:
            post_line(team, own, base + step)
        else:
            store_release(&own.flag, base + step)
        source = team.rank - distance
        if source < 0:
            source += team.size
        status = wait_line(team, segment_line(&team.layout, team.base, source, slot.bank,
                                              slot.slot), base + step, source)
        if status != DONE:
            return status
        distance *= 2
        step += 1
    release_slot(team, &slot)
    return DONE
