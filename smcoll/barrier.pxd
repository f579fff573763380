from libc.stdint cimport uint64_t

from smcoll.base.atomics cimport (
    acquire_reached, fence_acquire, fence_release, load_acquire, load_relaxed, store_relaxed,
    store_release,
)
from smcoll.base.signature cimport history_with
from smcoll.segment cimport Layout, Line, Published, bank_field, exchange_line, published
from smcoll.sync.team cimport AGAIN, DONE, FAILED_MISMATCH, BankCursor, Team
from smcoll.sync.waiting cimport wait_awaited, wait_flag, wake_who_sleeps

cdef void init_team(Team *team, uint64_t start) noexcept nogil
cdef void use_segments(Team *team, int segments) noexcept nogil
cdef int prove_bank(Team *team, const BankCursor *cursor) noexcept nogil
cdef int barrier_all_read(Team *team) noexcept nogil
cdef int barrier_dissemination(Team *team) noexcept nogil


# ---------------------------------------------------------------------- a call

# The next call: what our lines will say of it (`mark`, `signature`, `nbytes`: post_line stores
# them, wait_line compares them). It goes into a ring, too, which only ranks that wait in vain read.
cdef inline void publish_call(Team *team, uint64_t signature, uint64_t nbytes) noexcept nogil:
    cdef Published *entry
    cdef uint64_t history = team.next_history
    team.call += 1
    team.history = history
    team.mark = team.call & <uint64_t> 0xFFFFFFFFFF | history & <uint64_t> 0xFFFFFF0000000000
    team.signature = signature
    team.nbytes = nbytes
    entry = published(&team.layout, team.base, team.rank, team.call)
    # A reader accepts the entry only if its number is the expected one before and after it was
    # read. So another number is set first, the right one last. Ranks may be reading meanwhile, so
    # every store is atomic.
    store_relaxed(&entry.call, team.call - 1)
    fence_release()
    store_relaxed(&entry.signature, team.signature)
    store_relaxed(&entry.nbytes, team.nbytes)
    store_relaxed(&entry.history, team.history)
    store_relaxed(&entry.number, team.number)
    store_release(&entry.call, team.call)
    store_release(&team.status.current_call, team.call)
    # Two ranks may be in different calls without noticing: in a short Bcast with two roots neither
    # waits. The mark contains a hash of all earlier calls, so their next wait for each other sees
    # it.
    team.next_history = history_with(history, signature, nbytes)


# The same, and wake the ranks that sleep in a long wait: they may be waiting for this call.
cdef inline void begin_call(Team *team, uint64_t signature, uint64_t nbytes) noexcept nogil:
    publish_call(team, signature, nbytes)
    wake_who_sleeps(team)


# ---------------------------------------------------------------------- lines

# After its flag was acquired: is the line's owner in the same call as we are?
cdef inline bint same_kind_of_call(const Team *team, const Line *line) noexcept nogil:
    return line.mark == team.mark and line.signature == team.signature


# After a line of this call was acquired whose length is its owner's own: does the owner's published
# call have as many bytes as ours? (An entry that was overwritten since tells nothing.)
cdef inline bint agrees_on_bytes(const Team *team, int rank) noexcept nogil:
    cdef Published *entry = published(&team.layout, team.base, rank, team.call)
    cdef uint64_t nbytes
    if load_acquire(&entry.call) != team.call:
        return True
    nbytes = load_relaxed(&entry.nbytes)
    fence_acquire()
    return load_acquire(&entry.call) != team.call or nbytes == team.nbytes


# DONE where what `rank` says of its call agrees with ours.
cdef inline int checked(Team *team, bint agrees, int rank) noexcept nogil:
    if agrees:
        return DONE
    team.awaited_rank = rank
    return FAILED_MISMATCH


# Non-blocking: DONE when the owner of `line` has reached `value` in our call, AGAIN if not yet.
cdef inline int arrived(Team *team, const Line *line, uint64_t value, int rank) noexcept nogil:
    cdef int status = arrived_with_length(team, line, value, rank)
    return checked(team, line.nbytes == team.nbytes, rank) if status == DONE else status


# The same where the lengths of messages may differ between ranks.
cdef inline int arrived_with_length(Team *team, const Line *line, uint64_t value,
                                    int rank) noexcept nogil:
    if not acquire_reached(&line.flag, value):
        team.awaited = &line.flag
        team.awaited_value = value
        team.awaited_rank = rank
        return AGAIN
    return checked(team, same_kind_of_call(team, line), rank)


# Blocking forms, for straight code. wait_flag polls, yields, sleeps, and returns DONE only after an
# acquire load has seen the value; what it stores is not read by any algorithm.
cdef inline int wait_line(Team *team, const Line *line, uint64_t value, int rank) noexcept nogil:
    cdef int status = wait_line_with_length(team, line, value, rank)
    return checked(team, line.nbytes == team.nbytes, rank) if status == DONE else status


cdef inline int wait_line_with_length(Team *team, const Line *line, uint64_t value,
                                      int rank) noexcept nogil:
    cdef int status
    if not acquire_reached(&line.flag, value):
        status = wait_flag(team, &line.flag, value, rank)
        if status != DONE:
            return status
    return checked(team, same_kind_of_call(team, line), rank)


# Say in our own line: which call this is, then, with release, that `value` is reached. What the
# line held before has no reader left (docs/protocol.md, rule 11: the callers prove it).
cdef inline void post_line(const Team *team, Line *line, uint64_t value) noexcept nogil:
    post_line_length(team, line, value, team.nbytes)


# The same with a length that is this rank's own.
cdef inline void post_line_length(const Team *team, Line *line, uint64_t value,
                                  uint64_t nbytes) noexcept nogil:
    line.mark = team.mark
    line.signature = team.signature
    line.nbytes = nbytes
    store_release(&line.flag, value)


# ---------------------------------------------------------------------- synchronising exchanges

# The line in which `rank` posts in the current exchange. Two slots alternate by the count of
# exchanges: who writes in exchange e + 2 has heard every rank in e + 1, and a rank posts e + 1
# after it has read all of e (docs/protocol.md, rule 11).
cdef inline Line *line_in_exchange(const Team *team, int rank) noexcept nogil:
    return exchange_line(&team.layout, team.base, rank, <int> (team.exchanges & 1))


# ---------------------------------------------------------------------- slots and banks

# The next slot of a ring; the same on every rank.
cdef inline void advance_cursor(const Layout *layout, BankCursor *cursor) noexcept nogil:
    cursor.slot += 1
    if cursor.slot >= cursor.in_use:
        cursor.slot = 0
        cursor.bank += 1
        if cursor.bank == layout.banks:
            cursor.bank = 0
            cursor.pass_ += 1


# The slot of the next call in inline slots, and the value of its flags: the same on every rank.
cdef inline uint64_t take_inline_slot(Team *team, BankCursor *slot) noexcept nogil:
    slot[0] = team.inline_slots
    team.rooted += 1
    advance_cursor(&team.layout, &team.inline_slots)
    return team.rooted


# Before writing into the slot under `cursor`: is everybody through with what lay there? Once a rank
# has seen that for a bank, it uses the bank's slots in order without further checks (GS section 3).
# DONE, or AGAIN with the rank that isn't. Only writers need the proof: a rank that merely reads
# from the bank never waits here. The barrier's fields count passes: in pass p a bank may be written
# when all fields hold at least p: all ranks are through with pass p - 1 (release_bank).
cdef inline int acquire_slot(Team *team, const BankCursor *cursor) noexcept nogil:
    if team.proven[cursor.kind][cursor.bank] == cursor.pass_:
        return DONE
    return prove_bank(team, cursor)


# The blocking form, for straight code.
cdef inline int acquire_slot_waiting(Team *team, const BankCursor *cursor) noexcept nogil:
    cdef int status = acquire_slot(team, cursor)
    while status == AGAIN:
        status = wait_awaited(team)
        if status == DONE:
            status = acquire_slot(team, cursor)
    return status


cdef inline void release_bank(Team *team, const BankCursor *cursor) noexcept nogil:
    store_release(bank_field(&team.layout, team.base, team.rank, cursor.kind, cursor.bank),
                  cursor.pass_ + 1)


# This rank is through with the slot under `cursor` (has read all that it will read there). Behind
# a bank's last slot this starts the bank's nonblocking barrier (GS section 3).
cdef inline void release_slot(Team *team, const BankCursor *cursor) noexcept nogil:
    if cursor.slot == cursor.in_use - 1:
        release_bank(team, cursor)
