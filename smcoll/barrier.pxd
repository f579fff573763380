from cpython.pystate cimport PyThreadState
from libc.stdint cimport int64_t, uint32_t, uint64_t

from smcoll.atomics cimport fence_acquire, load_acquire, load_relaxed, store_release
from smcoll.cross_memory cimport OtherProcess
from smcoll.domains cimport DomainView
from smcoll.heap cimport HeapView
from smcoll.segment cimport (
    MAX_BANKS, Layout, Line, Published, Status, bank_field, published,
)
from smcoll.trees cimport TreeView

# What a wait or a step of an algorithm returns.
cdef enum:
    DONE = 0
    AGAIN = 1                  # would block; Team.awaited_* say on what
    FAILED_EXCEPTION = -1      # a Python exception is kept in the team's attendant
    FAILED_MISMATCH = -2       # Team.awaited_rank is in another call
    FAILED_POISONED = -3       # a rank gave up; Team.awaited_rank says which
    FAILED_TIMEOUT = -4        # Team.awaited_rank did not come
    FAILED_PEER_DEAD = -5      # Team.awaited_rank died
    FAILED_DAMAGED = -6        # what Team.awaited_rank published cannot be true

# Why a rank gave up (Status.poison).
cdef enum:
    POISON_EXCEPTION = 1
    POISON_MISMATCH = 2
    POISON_PEER_DEAD = 3
    POISON_TIMEOUT = 4

# Collectives, as they stand in signatures.
cdef enum:
    COLLECTIVE_BARRIER = 1
    COLLECTIVE_BCAST = 2
    COLLECTIVE_REDUCE = 3
    COLLECTIVE_ALLREDUCE = 4
    COLLECTIVE_RESERVE = 5     # reserving the data regions or the streams, in agreement
    COLLECTIVE_GATHER = 6
    COLLECTIVE_SCATTER = 7
    COLLECTIVE_ALLGATHER = 8
    COLLECTIVE_ALLTOALL = 9
    COLLECTIVE_REDUCE_SCATTER = 10
    COLLECTIVE_SCAN = 11
    COLLECTIVE_EXSCAN = 12
    # The lower-case collectives, whose messages are Python objects.
    COLLECTIVE_OBJECT_BCAST = 13
    COLLECTIVE_OBJECT_GATHER = 14
    COLLECTIVE_OBJECT_SCATTER = 15
    COLLECTIVE_OBJECT_ALLGATHER = 16
    COLLECTIVE_OBJECT_ALLTOALL = 17
    COLLECTIVES = 18           # one more than the last; 0: a stage of any

# Reusable slots in banks. `pass_` counts full rounds over all banks, so that bank b's barrier of
# round n is complete when every rank's field is >= n + 1.
cdef struct BankCursor:
    int kind                   # which barrier fields: 0 data banks, 1 rooted inline banks
    int bank, slot
    int in_use                 # slots of a bank before the next bank is taken; see use_segments
    uint64_t pass_

# How a rank leaves the CPU in a wait that the awaited rank ends by waking it.
cdef enum Sleeping:
    NO_SLEEP = 0
    SLEEP_AFTER_YIELD = 1      # the awaited rank may be about to post: one turn for others first
    SLEEP_AT_ONCE = 2          # it waits for the network itself

# What a rank's word says of it (segment.pxd: asleep_of).
cdef enum:
    AWAKE = 0
    ASLEEP_ON_FLAG = 1         # until the awaited flag is posted
    ASLEEP = 2                 # on that very word: until any other rank begins a call

# The state of one rank in one communicator. Private to the rank; what is shared is in the mapping.
cdef struct Team:
    char *base
    Layout layout
    Status *status             # our own line of the control pages
    int rank, size
    const DomainView *domains  # where the ranks lie
    int *scratch               # room for two lists of ranks
    # How to wait (agreed once per communicator).
    int spin
    bint oversubscribed
    # By collective, from how many bytes on (SIZE_MAX: never) ...
    size_t streaming_from[COLLECTIVES]    # ... a rank's result is written around the caches
    size_t kernel_copy_from[COLLECTIVES]  # ... what a rank hands out is read through the kernel
    const HeapView *heaps      # every rank's shared heap; NULL: this communicator has none
    size_t direct_from[COLLECTIVES]       # ... a message is read in its sender's heap
    const OtherProcess *processes  # every rank's; NULL: they can't read each other's memory
    uint64_t direct_bytes      # of this call, moved to or from other ranks' arrays without staging
    # Counters: functions of the sequence of calls only, hence the same on every rank.
    uint64_t call              # number of the current or last call
    uint64_t tick              # segment flags are tick + step; a call moves it past all its steps
    uint64_t exchanges         # synchronising exchanges so far
    uint64_t rooted            # rooted inline slots used so far
    BankCursor segments
    BankCursor inline_slots
    uint64_t proven[2][MAX_BANKS]   # [kind][bank]: last pass that all ranks let us write in
    # The current call.
    uint64_t signature, nbytes
    # Whom we wait for.
    const uint64_t *awaited
    uint64_t awaited_value
    int awaited_rank
    bint wait_is_published     # Status.awaited says so
    # Who attends to everything else while we wait.
    void *attendant            # borrowed: barrier.Attendant
    PyThreadState *thread_state   # set while this call has released the GIL
    bint holds_gil
    int64_t attended           # when the attendant was last called, or MPI driven by a wait for it
    int64_t attendant_called   # when it was called itself (monotonic ns, both)
    int64_t attend_every
    int64_t began              # the last call (monotonic ns), of more than a few ranks
    uint64_t woken             # how often another rank, by beginning a call, cut a pause short
    Sleeping sleeping          # in this call, for an inline line; who posts it wakes who sleeps
    bint wakes_for_banks       # who releases a bank wakes who sleeps until it is released
    Sleeping may_sleep         # in this wait
    int64_t sleep_after        # a wait that is longer (ns) sleeps between its polls
    uint32_t calls_since_attended


cdef class Attendant:
    cdef public object poke        # callable: one step of MPI's progress
    cdef public object watch       # callable(rank, seconds) -> 0 or a FAILED_ code
    cdef object failure            # the exception that ended a wait
    cdef int64_t idle_cost         # shortest poke seen, ns: a longer one found MPI at work
    cdef int64_t last_busy
    cdef int64_t last_watch

    cdef bint poke_finds_work(self) except -1
    cdef int64_t timed_poke(self) except -1


# In signatures of calls without one.
cdef enum:
    NO_OPERATION = 31
    NO_TYPE = 63


cdef inline uint64_t pack_signature(int collective, int op, int element_type, int algorithm,
                                    int fan_in, int fan_out, int root) noexcept nogil:
    return (<uint64_t> (collective & 31) << 59 | <uint64_t> (op & 31) << 54
            | <uint64_t> (element_type & 63) << 48 | <uint64_t> (algorithm & 255) << 40
            | <uint64_t> (fan_in & 255) << 32 | <uint64_t> (fan_out & 255) << 24
            | <uint64_t> (root & 0xffffff))


cdef int init_team(Team *team, uint64_t start) noexcept nogil
cdef void begin_call(Team *team, uint64_t signature, uint64_t nbytes) noexcept nogil
cdef void begin_mpi_call(Team *team, uint64_t signature, uint64_t nbytes) noexcept nogil
# Asked again and again in a wait. Sets team.awaited_rank where it answers no, or leaves it at -1:
# what MPI brings.
ctypedef bint (*condition)(void *context) noexcept nogil

cdef int wait_until(Team *team, condition holds, void *context) noexcept nogil
cdef int wait_flag(Team *team, const uint64_t *flag, uint64_t value, int rank) noexcept nogil
cdef int wait_awaited(Team *team) noexcept nogil
cdef void wake_sleepers(Team *team, const uint64_t *flag) noexcept nogil
cdef int attend(Team *team, int64_t waited) noexcept with gil
cdef int attend_between_calls(Team *team) noexcept nogil
cdef void use_segments(Team *team, int segments) noexcept nogil
cdef int acquire_slot(Team *team, const BankCursor *cursor) noexcept nogil
cdef int acquire_slot_waiting(Team *team, const BankCursor *cursor) noexcept nogil
cdef int barrier_all_read(Team *team) noexcept nogil
cdef int barrier_tree(Team *team, const TreeView *fan_in, const TreeView *fan_out) noexcept nogil
cdef int barrier_dissemination(Team *team) noexcept nogil


# The i-th rank after ours: so that not all ranks read the same line first.
cdef inline int next_rank(const Team *team, int i) noexcept nogil:
    return team.rank + i if team.rank + i < team.size else team.rank + i - team.size


# Has `flag` reached `value`? Signed difference: right across a wrap of the counter.
cdef inline bint reached(const uint64_t *flag, uint64_t value) noexcept nogil:
    return <int64_t> (load_acquire(flag) - value) >= 0


# After its flag was acquired: is the line's owner in the same call as we are?
cdef inline bint same_kind_of_call(const Team *team, const Line *line) noexcept nogil:
    return line.call == team.call and line.signature == team.signature


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


# Non-blocking: DONE when the owner of `line` has reached `value` in our call, AGAIN if not yet.
cdef inline int arrived(Team *team, const Line *line, uint64_t value, int rank) noexcept nogil:
    cdef int status = arrived_with_length(team, line, value, rank)
    if status == DONE and line.nbytes != team.nbytes:
        team.awaited_rank = rank
        return FAILED_MISMATCH
    return status


# The same where the lengths of messages may differ between ranks.
cdef inline int arrived_with_length(Team *team, const Line *line, uint64_t value,
                                    int rank) noexcept nogil:
    if not reached(&line.flag, value):
        team.awaited = &line.flag
        team.awaited_value = value
        team.awaited_rank = rank
        return AGAIN
    if not same_kind_of_call(team, line):
        team.awaited_rank = rank
        return FAILED_MISMATCH
    return DONE


# Blocking forms, for straight code.
cdef inline int wait_line(Team *team, const Line *line, uint64_t value, int rank) noexcept nogil:
    cdef int status = wait_line_with_length(team, line, value, rank)
    if status == DONE and line.nbytes != team.nbytes:
        team.awaited_rank = rank
        return FAILED_MISMATCH
    return status


cdef inline int wait_line_with_length(Team *team, const Line *line, uint64_t value,
                                      int rank) noexcept nogil:
    cdef int status
    if not reached(&line.flag, value):
        status = wait_flag(team, &line.flag, value, rank)
        if status != DONE:
            return status
    if not same_kind_of_call(team, line):
        team.awaited_rank = rank
        return FAILED_MISMATCH
    return DONE


# Say in our own line: which call this is, then, with release, that `value` is reached. What the
# line held before has no reader left (rule 11: the callers prove it).
cdef inline void publish(const Team *team, Line *line, uint64_t value) noexcept nogil:
    publish_length(team, line, value, team.nbytes)


# The same with a length that is this rank's own.
cdef inline void publish_length(const Team *team, Line *line, uint64_t value,
                                uint64_t nbytes) noexcept nogil:
    line.call = team.call
    line.signature = team.signature
    line.nbytes = nbytes
    store_release(&line.flag, value)


# The next slot of a ring; the same on every rank.
cdef inline void advance_cursor(const Layout *layout, BankCursor *cursor) noexcept nogil:
    cursor.slot += 1
    if cursor.slot >= cursor.in_use:
        cursor.slot = 0
        cursor.bank += 1
        if cursor.bank == layout.banks:
            cursor.bank = 0
            cursor.pass_ += 1


# The slot of the next call in inline slots, and what its lines are marked with.
cdef inline uint64_t take_inline_slot(Team *team, BankCursor *slot) noexcept nogil:
    slot[0] = team.inline_slots
    team.rooted += 1
    advance_cursor(&team.layout, &team.inline_slots)
    return team.rooted


cdef inline void release_bank(Team *team, const BankCursor *cursor) noexcept nogil:
    cdef uint64_t *field = bank_field(&team.layout, team.base, team.rank, cursor.kind, cursor.bank)
    store_release(field, cursor.pass_ + 1)
    if team.wakes_for_banks:
        wake_sleepers(team, field)


# This rank is through with the slot under `cursor` (has read all that it will read there). Behind
# a bank's last slot this starts the bank's nonblocking barrier (GS section 3).
cdef inline void release_slot(Team *team, const BankCursor *cursor) noexcept nogil:
    if cursor.slot == cursor.in_use - 1:
        release_bank(team, cursor)
