"""The one function that waits, and what a long wait does besides.

Shared words and their pairing (each with one writer):

========================  ==================================  =================================
word                      stored by                           loaded by
========================  ==================================  =================================
``Status.awaited``        owner, release, after the time,     reports, acquire, then the time
                          once a wait is long
``Status.cpu``            owner, relaxed                      who waits for it, relaxed: a hint
``asleep_of``             owner, before a full fence and its  who begins a call, relaxed: a hint
                          last look at what it waits for
========================  ==================================  =================================
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint64_t

from smcoll.base.atomics cimport (
    acquire_reached, cpu_pause, fence_full, load_relaxed, load_relaxed_int, monotonic_ns, sleep_for,
    store_relaxed, store_relaxed_int, store_release, thread_cpu_ns,
)
from smcoll.segment cimport AWAITS_MPI, Status, asleep_of, status_of
from smcoll.sync.team cimport ASLEEP, AWAKE, DONE, FAILED_EXCEPTION, PyThreadState, Team


cdef extern from "Python.h":
    PyThreadState *PyEval_SaveThread() noexcept nogil


cdef extern from "sched.h" nogil:
    int sched_getcpu() noexcept
    int sched_yield() noexcept


cdef enum:
    POLLS_BEFORE_YIELD = 1000      # about 30 us: longer than any exchange between running ranks
    # At the clock, whether to attend. A look costs about 25 ns, so it is nothing in 64 calls.
    CALLS_BETWEEN_LOOKS = 64

# Times in ns. A poke takes 0.3 us when MPI is idle, 2 us when the caches are cold; one that found
# MPI at work is followed by the next at once. In a loop of short waits 50 us would be often: a
# tenth of the time of 8 ranks on 2 cores.
cdef int64_t ATTEND_EVERY = 50_000
cdef int64_t ATTEND_IN_SHORT_WAITS = 200_000
cdef int64_t ATTEND_EVERY_AT_MOST = 1_000_000
cdef int64_t WATCH_EVERY = 1_000_000
cdef int64_t SLEEP_AFTER = 1_500_000
cdef int64_t SLEEP_AT_LEAST = 100_000          # each costs 50 us of CPU
cdef int64_t SLEEP_AT_MOST = 4_000_000         # of 1 ms they took 5 ms of a wait of 100
cdef int64_t SLEEP_AGAIN_AFTER = 200_000       # woken: somebody is about to post
cdef int64_t STAYS_BUSY = 500_000


cdef void init_waiting(Team *team) noexcept nogil:
    """How this rank waits: it polls only where no other rank may need its CPU."""
    team.spin = team.polls = 0 if team.oversubscribed else POLLS_BEFORE_YIELD
    team.attend_every = ATTEND_EVERY
    team.sleep_after = SLEEP_AFTER_SHARED if team.oversubscribed else SLEEP_AFTER
    team.attended = team.attendant_called = team.began = monotonic_ns()


cdef class Attendant:
    """What a long wait does besides waiting: MPI's progress, signals, and the watch over peers.

    ``poke()`` drives MPI; ``watch(rank, seconds)`` is called every 1 to 4 ms of a wait and
    answers 0 or one of the FAILED codes. Both are set by the layer that knows MPI.
    """

    def __cinit__(self):
        self.idle_cost = 1_000_000

    cdef bint poke_finds_work(self, bint has_cpu) except -1:
        """Drive MPI once or twice; whether that took so long that it must have moved data."""
        if self.timed_poke(has_cpu) < 4 * self.idle_cost + 1000:
            return False
        # After a sleep, or another rank's turn on this core, the caches are cold and an idle poke
        # is slow too: the second one tells.
        return self.timed_poke(has_cpu) > 4 * self.idle_cost + 1000

    cdef int64_t timed_poke(self, bint has_cpu) except -1:
        # CPU time where ranks share cores: MPI yields there inside an idle poke, and what the
        # others do meanwhile says nothing about this rank's MPI. It is a call of the kernel's.
        cdef int64_t before = monotonic_ns() if has_cpu else thread_cpu_ns(), cost
        self.poke()
        cost = (monotonic_ns() if has_cpu else thread_cpu_ns()) - before
        self.idle_cost = min(self.idle_cost, cost)
        return cost

    def fail(self, error):
        """Keep what ended a call; ``take_failure`` gives it back."""
        self.failure = error

    def take_failure(self):
        """The exception that ended the wait; forgotten here."""
        failure, self.failure = self.failure, None
        return failure


cdef int attend(Team *team, int64_t waited) noexcept with gil:
    """Drive MPI, let Python handle signals, watch the awaited rank. DONE or a FAILED code."""
    cdef Attendant attendant = <Attendant> team.attendant
    cdef int64_t now
    cdef int status = DONE
    if team.polls > 0:
        publish_cpu(team)
    try:
        PyErr_CheckSignals()
        if attendant.poke is not None and attendant.poke_finds_work(team.spin > 0):
            attendant.last_busy = monotonic_ns()
        now = monotonic_ns()
        # Dense while MPI is at work, and rarer the longer it has been idle.
        if now - attendant.last_busy < STAYS_BUSY:
            team.attend_every = 0
        else:
            team.attend_every = ATTEND_EVERY
            if waited > 20 * ATTEND_EVERY_AT_MOST:
                team.attend_every = ATTEND_EVERY_AT_MOST
        if waited > WATCH_EVERY:
            publish_wait(team, now - waited)
        if attendant.watch is not None and waited > WATCH_EVERY:
            if now - attendant.last_watch > WATCH_EVERY:
                attendant.last_watch = now
                status = attendant.watch(team.awaited_rank, waited * 1e-9)
        team.attended = team.attendant_called = now
    except BaseException as error:
        attendant.failure = error
        status = FAILED_EXCEPTION
    team.calls_since_look = 0
    return status


cdef void publish_wait(Team *team, int64_t since) noexcept nogil:
    """Say whom we wait for, for reports. Only from long waits: short ones pay nothing."""
    cdef uint64_t awaited = AWAITS_MPI
    if team.awaited_rank >= 0:
        awaited = <uint64_t> team.awaited_rank + 1
    if load_relaxed(&team.status.awaited) != awaited:
        store_relaxed(&team.status.waiting_since, <uint64_t> since)
        store_release(&team.status.awaited, awaited)
        team.wait_is_published = True


cdef int attend_between_calls(Team *team) noexcept nogil:
    """Short calls never wait long: without this, a loop of them would starve MPI's progress.

    By the clock, since a step of MPI's progress costs as much as many short calls. Rarer than in
    long waits it must not be: what MPI carries out beside the loop waits for it (docs/notebook.md).
    """
    team.calls_since_look += 1
    if team.calls_since_look < CALLS_BETWEEN_LOOKS:
        return DONE
    team.calls_since_look = 0
    if team.attend_every > 0 and monotonic_ns() - team.attended < ATTEND_EVERY:
        return DONE
    return attend(team, 0)


cdef int wait_until(Team *team, condition holds, void *context) noexcept nogil:
    """The one wait: until ``holds(context)``.

    Spins for a bounded number of polls (none where ranks outnumber CPUs: the awaited rank may need
    this one), then yields, after a millisecond or so sleeps in growing steps, each until another
    rank begins a call; attends to the rest of the world all along. DONE or a FAILED code. Gives the
    GIL up before it yields; the call's end takes it back.
    """
    cdef int _poll
    for _poll in range(team.spin):
        cpu_pause()
        if holds(context):
            return DONE
    return wait_long(team, holds, context)


cdef bint awaited_reached(void *context) noexcept nogil:
    cdef Team *team = <Team *> context
    return acquire_reached(team.awaited, team.awaited_value)


cdef int wait_flag(Team *team, const uint64_t *flag, uint64_t value, int rank) noexcept nogil:
    """``wait_until`` the flag ``flag``, written by ``rank``, has reached ``value``."""
    cdef int _poll
    for _poll in range(team.spin):
        cpu_pause()
        if acquire_reached(flag, value):
            return DONE
    team.awaited = flag
    team.awaited_value = value
    team.awaited_rank = rank
    return wait_long(team, awaited_reached, team)


cdef int publish_cpu(Team *team) noexcept nogil:
    """Say which CPU this rank is on: 1 + its number, which it also returns; 0: not known."""
    cdef int cpu = 1 + sched_getcpu()
    if load_relaxed_int(&team.status.cpu) != cpu:
        store_relaxed_int(&team.status.cpu, cpu)
    return cpu


cdef void heed_shared_cpu(Team *team) noexcept nogil:
    """Poll no more while another rank was last seen on this very CPU: what is awaited may need it.

    Ranks that nobody bound get together where other programs take the rest of the machine. Each
    says where it is whenever it attends, so that this ends soon after they part.
    """
    cdef int cpu, rank
    if team.polls == 0:
        return
    cpu = publish_cpu(team)
    team.spin = team.polls
    for rank in range(team.size):
        if rank != team.rank and cpu > 0 and cpu == load_relaxed_int(
                &status_of(&team.layout, team.base, rank).cpu):
            team.spin = 0
            return


cdef int wait_long(Team *team, condition holds, void *context) noexcept nogil:
    cdef int status
    heed_shared_cpu(team)
    status = wait_attending(team, holds, context)
    if team.wait_is_published:
        team.wait_is_published = False
        store_relaxed(&team.status.awaited, 0)
    return status


cdef enum SleepEnd:
    SLEPT                      # to its end, or for nothing
    CUT_SHORT                  # the awaited rank is about to post
    HOLDS                      # what was waited for is there


# What the rank that is waited for was doing when this one last looked.
cdef struct Seen:
    int rank
    uint64_t call
    bint is_in_this_call       # or past it


cdef int wait_attending(Team *team, condition holds, void *context) noexcept nogil:
    cdef int64_t started = monotonic_ns(), now, interval, pause
    cdef int64_t since = started, busy = team.sleep_after
    cdef int status, blamed
    cdef SleepEnd outcome
    cdef Seen seen
    seen.rank = -1
    seen.call = 0
    seen.is_in_this_call = False
    if team.holds_gil and team.thread_state == NULL:
        team.thread_state = PyEval_SaveThread()
    while True:
        sched_yield()
        if holds(context):
            return DONE
        now = monotonic_ns()
        interval = team.attend_every
        if interval > 0 and now - started < ATTEND_EVERY:
            interval = ATTEND_IN_SHORT_WAITS
        if now - team.attended >= interval:
            status = attend(team, now - started)
            if status != DONE:
                # What came meanwhile counts: a rank may have posted and then died or gone on.
                blamed = team.awaited_rank
                if status != FAILED_EXCEPTION and holds(context):
                    return DONE
                team.awaited_rank = blamed
                return status
        if team.attend_every == 0 and now - started > team.sleep_after:
            # MPI is at work, and not for the last time.
            since = now
            busy = min(team.sleep_after, SLEEP_AGAIN_AFTER)
        elif team.attend_every > 0 and now - since > busy:
            pause = max((now - since) // 8, SLEEP_AT_LEAST)
            if team.awaited_rank < 0:
                # What MPI brings wakes nobody.
                sleep_for(asleep_of(&team.layout, team.base, team.rank), AWAKE,
                          min(pause, ATTEND_EVERY_AT_MOST))
                continue
            outcome = sleep_a_while(team, holds, context, &seen, min(pause, SLEEP_AT_MOST))
            if outcome == HOLDS:
                return DONE
            if outcome == CUT_SHORT:
                team.woken += 1
                since = monotonic_ns()
                busy = min(team.sleep_after, SLEEP_AGAIN_AFTER)


cdef SleepEnd sleep_a_while(Team *team, condition holds, void *context, Seen *seen,
                            int64_t ns) noexcept nogil:
    """Leave the CPU for a pause, or until another rank begins a call.

    Without a wake-up, who was waited for long would find the others asleep. It is a hint: one that
    comes between the last look and the sleep is lost and costs the pause.
    """
    cdef int *word = asleep_of(&team.layout, team.base, team.rank)
    cdef bint woken = False, moved
    store_relaxed_int(word, ASLEEP)
    fence_full()
    if holds(context):
        store_relaxed_int(word, AWAKE)
        return HOLDS
    moved = has_moved(team, seen)
    if not moved:
        woken = sleep_for(word, ASLEEP, ns)
        moved = has_moved(team, seen)
    store_relaxed_int(word, AWAKE)
    # The awaited rank may itself have waited for the one that woke us.
    return CUT_SHORT if moved or (woken and seen.is_in_this_call) else SLEPT


cdef bint has_moved(Team *team, Seen *seen) noexcept nogil:
    """Whether the awaited rank has begun a call since the last look."""
    cdef Status *status = status_of(&team.layout, team.base, team.awaited_rank)
    cdef uint64_t call = load_relaxed(&status.current_call)
    cdef bint moved = seen.rank == team.awaited_rank and call != seen.call
    seen.rank = team.awaited_rank
    seen.call = call
    seen.is_in_this_call = <int64_t> (call - team.call) >= 0
    return moved


cdef int wait_awaited(Team *team) noexcept nogil:
    """Wait for what the last AGAIN was about."""
    return wait_flag(team, team.awaited, team.awaited_value, team.awaited_rank)
