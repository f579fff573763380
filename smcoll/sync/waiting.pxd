from libc.stdint cimport int64_t, uint64_t

from smcoll.base.atomics cimport load_relaxed_int, monotonic_ns, wake
from smcoll.segment cimport asleep_of
from smcoll.sync.team cimport ASLEEP, Team, next_rank

cdef enum:
    LOOKED_AT_ALWAYS = 3           # ranks: as many are looked at without asking the clock
    # In ns: ranks outnumber CPUs, others could use this one.
    SLEEP_AFTER_SHARED = 1_000_000

# Asked again and again in a wait. Where it answers no, it may set team.awaited_rank: to the rank
# that is waited for, or to -1 for what MPI brings.
ctypedef bint (*condition)(void *context) noexcept nogil


cdef class Attendant:
    cdef public object poke        # callable: one step of MPI's progress
    cdef public object watch       # callable(rank, seconds) -> 0 or a FAILED_ code
    cdef object failure            # the exception that ended a wait
    cdef int64_t idle_cost         # shortest poke seen, ns: a longer one found MPI at work
    cdef int64_t last_busy
    cdef int64_t last_watch

    cdef bint poke_finds_work(self, bint has_cpu) except -1
    cdef int64_t timed_poke(self, bint has_cpu) except -1


cdef int wait_until(Team *team, condition holds, void *context) noexcept nogil
cdef int wait_flag(Team *team, const uint64_t *flag, uint64_t value, int rank) noexcept nogil
cdef int wait_awaited(Team *team) noexcept nogil
cdef int attend(Team *team, int64_t waited) noexcept with gil
cdef int attend_between_calls(Team *team) noexcept nogil
cdef void init_waiting(Team *team) noexcept nogil


# At the start of a call: wake the ranks that sleep in a long wait, perhaps for this one.
cdef inline void wake_who_sleeps(Team *team) noexcept nogil:
    cdef int64_t now, before
    cdef int i
    cdef int *word
    if team.size > LOOKED_AT_ALWAYS:
        # A page and a cache line of every rank cost more than the clock. After so short a time few
        # can have fallen asleep for want of this rank.
        now = monotonic_ns()
        before, team.began = team.began, now
        if now - before < SLEEP_AFTER_SHARED:
            return
    for i in range(1, team.size):
        word = asleep_of(&team.layout, team.base, next_rank(team, i))
        if load_relaxed_int(word) == ASLEEP:
            wake(word)
