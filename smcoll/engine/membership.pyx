"""One rank's membership of a segment: entering and leaving calls, and what happens when they fail.

A rank that gives up poisons its own word, so that nobody waits for it; one that waits long watches
the others: whether they gave up, called something else, left or died, and says what it found.
"""

import sys
import weakref

from cpython.pystate cimport PyThreadState
from libc.stdint cimport SIZE_MAX, int64_t, uint64_t

from smcoll.barrier cimport init_team
from smcoll.base.atomics cimport (
    fence_acquire, fence_release, load_acquire, load_relaxed, monotonic_ns, store_release, try_lock,
    unlock,
)
from smcoll.base.signature cimport COLLECTIVES
from smcoll.coll.stores cimport describe_stores, free_stores, init_stores
from smcoll.segment cimport Layout, Mapping, Published, Status, published, status_of
from smcoll.sync.domains cimport Domains
from smcoll.sync.team cimport (
    DONE, FAILED_DAMAGED, FAILED_EXCEPTION, FAILED_MISMATCH, FAILED_PEER_DEAD, FAILED_POISONED,
    FAILED_TIMEOUT, POISON_EXCEPTION, POISON_MISMATCH, POISON_PEER_DEAD, POISON_PEER_ENDED,
    POISON_TIMEOUT, Team,
)
from smcoll.sync.waiting cimport Attendant, attend_between_calls

from mpi4py import MPI

from smcoll.coll.stores import stores_number
from smcoll.errors import Error, MismatchError, PeerError, WaitTimeout
from smcoll.sync.calls import describe_call, in_words
from smcoll.sync.observation import Observation


cdef extern from "Python.h":
    PyThreadState *PyEval_SaveThread() noexcept nogil
    void PyEval_RestoreThread(PyThreadState *state) noexcept nogil


cdef enum:
    # Why a call can't even begin; beside DONE and the FAILED codes.
    UNUSABLE = 11
    BUSY = 12

cdef enum:
    # Above this many bytes a call gives the GIL up at its start; below, when it first yields.
    RELEASE_GIL_ABOVE = 16384

# How often a wait looks whether ranks other than the awaited one are alive.
cdef int64_t LOOK_AT_ALL_EVERY = 50_000_000


cdef inline bint has_come(uint64_t call, uint64_t now) noexcept:
    """Whether ``now`` is that call or a later one; 0 stands for all calls. Numbers wrap round."""
    return call == 0 or <int64_t> (now - call) >= 0


def _watch(member_reference, int rank, double seconds):
    member = member_reference()
    return 0 if member is None else member.watch(rank, seconds)


cdef class Member:
    """What all layers of an engine share: the rank's team, its mapping, its standing."""

    def __cinit__(self, Mapping mapping, config, int rank, int size, bint oversubscribed,
                  int instruction_set, poke, budget, uint64_t start=1, places=None):
        self.mapping = mapping
        self.config = config
        self.budget = budget
        self.instruction_set = instruction_set
        self.start = start
        self.patience = 1
        self.roles = {}
        self.domains = Domains(places or [()] * size)
        self.team.rank = rank
        self.team.size = size
        self.team.oversubscribed = oversubscribed
        self.team.domains = &self.domains.view
        for collective in range(COLLECTIVES):
            self.team.streaming_from[collective] = config.streaming_size or SIZE_MAX
            self.team.kernel_copy_from[collective] = SIZE_MAX
            self.team.direct_from[collective] = SIZE_MAX
        self.attendant = Attendant()
        self.attendant.poke = poke
        reference = weakref.ref(self)
        self.attendant.watch = lambda awaited, seconds: _watch(reference, awaited, seconds)
        self.team.attendant = <void *> self.attendant
        if mapping is not None:
            self.team.base = mapping.base
            self.team.layout = mapping.layout
            init_team(&self.team, start)
            init_stores(&self.team, stores_number(config.stores), len(self.domains) > 1)
        if config.spin >= 0:
            self.team.spin = config.spin

    def __dealloc__(self):
        free_stores(&self.team)

    def stores_in_use(self, int collective, size_t nbytes):
        """(kind of stores, why) for what others read of such a call. By the collective's number."""
        if self.closed:
            return "none", "the communicator was freed"
        return describe_stores(&self.team, collective, nbytes)

    # ------------------------------------------------------------------ entering and leaving

    cdef int enter(self) except -1:
        """Before a call publishes anything: what is wrong here stays here (protocol rule 13)."""
        cdef int status = self.enter_without_gil()
        if status != DONE:
            self.explain_refusal(status)
        self.team.holds_gil = True
        return 0

    cdef int enter_without_gil(self) noexcept nogil:
        cdef int status
        if self.unusable:
            return UNUSABLE
        if not try_lock(&self.team.status.busy):
            return BUSY
        self.team.thread_state = NULL
        self.team.holds_gil = False
        self.warned = False
        if self.continues:
            # A signal's exception here would look local, but the peers are in this stage already.
            self.continues = False
            return DONE
        status = attend_between_calls(&self.team)
        if status != DONE:
            unlock(&self.team.status.busy)
        return status

    cdef int explain_refusal(self, int status) except -1:
        if status == UNUSABLE:
            self.refuse()
        if status == BUSY:
            raise Error("this communicator is in another collective already (a second thread, or "
                        "a signal handler that calls it): one call at a time")
        raise self.attendant.take_failure()

    cdef void take_gil_back(self) noexcept:
        # A wait may have given it up: nothing of Python may be touched before this.
        if self.team.thread_state != NULL:
            PyEval_RestoreThread(self.team.thread_state)
            self.team.thread_state = NULL

    cdef int leave(self, int status) except -1:
        self.take_gil_back()
        if self.closed:
            return self.leave_for_good(status)
        unlock(&self.team.status.busy)
        if status != DONE:
            self.fail(status)
        return 0

    cdef int leave_for_good(self, int status) except -1:
        # A signal handler or another thread freed the communicator during this call.
        error = self.attendant.take_failure()
        self.mapping.close()
        if status != DONE:
            raise error or MPI.Exception(MPI.ERR_COMM)
        return 0

    cdef void release_gil_if_long(self, size_t nbytes) noexcept:
        if nbytes > RELEASE_GIL_ABOVE:
            self.team.thread_state = PyEval_SaveThread()

    def refuse(self):
        """Raise what says that this communicator can't be used any more."""
        if self.closed:
            raise MPI.Exception(MPI.ERR_COMM)
        kind, message = self.failure
        raise kind(f"{message} (this communicator can't be used any more)")

    def fail(self, int status):
        """A call failed: poison our own word, so that nobody waits for us, and raise."""
        self.unusable = True
        cdef Team *team = &self.team
        blamed = team.awaited_rank
        where = self.call_in_words(blamed)
        if status == FAILED_EXCEPTION:
            error = self.attendant.take_failure()
            if hasattr(error, "blamed"):
                # From another node, whose ranks have no word in this segment.
                self.give_up(error, team.size + error.blamed)
                raise error
            self.poison(POISON_EXCEPTION, team.rank, self.user_call())
            self.failure = (Error, f"rank {self.name(team.rank)} was interrupted in {where}: "
                                   f"{type(error).__name__}")
            raise error
        if status == FAILED_MISMATCH:
            self.poison(POISON_MISMATCH, blamed, self.user_call())
            self.failure = (MismatchError, self.explain_mismatch(team.call))
        elif status == FAILED_POISONED:
            self.failure = self.pass_on_poison(blamed, where)
        elif status == FAILED_DAMAGED:
            self.poison(POISON_EXCEPTION, blamed, self.user_call())
            self.failure = (Error, f"rank {self.name(blamed)} says that its buffers lie where its "
                                   f"shared heap is not, in {where}")
        elif status == FAILED_TIMEOUT:
            outside = blamed < 0 and self.outside is not None
            self.poison(POISON_TIMEOUT, team.size + self.outside[0] if outside else blamed,
                        self.user_call())
            self.failure = (WaitTimeout, f"waited {self.config.timeout:g} s for "
                                         f"{self.awaited_in_words(blamed)} in {where}")
        else:
            self.poison(POISON_PEER_ENDED if self.has_left(blamed) else POISON_PEER_DEAD, blamed,
                        self.user_call())
            self.failure = (PeerError, self.explain_absence(blamed, where))
        kind, message = self.failure
        error = kind(message)
        if load_acquire(&self.team.status.poison) == POISON_PEER_ENDED:
            error.ended = True
        raise error

    def poison(self, uint64_t reason, int blamed, uint64_t since):
        """Tell every rank that waits, now or later, that this one has given up, and why.

        ``since``: the first of the user's calls that others, too, can't complete.
        """
        cdef Status *status = self.team.status
        status.poison_call = self.team.call
        status.poison_since = since
        status.poison_rank = blamed
        store_release(&status.poison, reason)
        # Before what the program may now do with arrays that others still read (`places`).
        fence_release()

    def disown(self):
        """In a forked child: the communicator is its parent's, whatever the child does."""
        if self.failure is None:
            self.failure = (Error, "this communicator belongs to the process that this one was "
                                   "forked from")
        self.unusable = True

    def abandon(self):
        """Give the communicator up without synchronising: an exception is on its way up."""
        if not self.closed and self.failure is None:
            # What it has completed the others will complete, too.
            completed = not self.team.status.busy and not self.left_a_call()
            self.poison(POISON_EXCEPTION, self.team.rank, self.user_call() + completed)
            self.failure = (Error, f"rank {self.name(self.team.rank)} abandoned the communicator")
            self.unusable = True

    def give_up(self, error, int blamed):
        """The same for a reason that was found outside of the segment; ``blamed`` as in names."""
        if not self.closed and self.failure is None:
            reasons = {PeerError: POISON_PEER_DEAD, MismatchError: POISON_MISMATCH,
                       WaitTimeout: POISON_TIMEOUT}
            reason = reasons.get(type(error), POISON_EXCEPTION)
            ended = getattr(error, "ended", False)
            self.poison(POISON_PEER_ENDED if ended else reason, blamed,
                        self.at_latest_now(getattr(error, "since", self.user_call())))
            self.failure = (type(error), str(error))
            self.unusable = True

    cdef uint64_t user_call(self) noexcept:
        """The call that this rank is in or was in last, as all ranks of the user's count."""
        return self.spanning_call if self.spans else self.team.call

    cdef uint64_t at_latest_now(self, uint64_t since) noexcept:
        """``since``, but not beyond the call that this rank fails in itself."""
        return since if has_come(since, self.user_call()) else self.user_call()

    def leave_uncompleted(self):
        """This rank's last call ended in an error before it took part in it."""
        self.uncompleted = self.user_call()

    cdef bint left_a_call(self) noexcept:
        """Whether that call is still the last one."""
        return self.uncompleted != 0 and self.uncompleted == self.user_call()

    def failed_since(self):
        """From which of the user's calls on ranks of other nodes fail with this one.

        A death on this node at once: they may wait for the dead, too, and can't see that it is one.
        """
        cdef Status *status = self.team.status
        if status.poison == POISON_PEER_DEAD and status.poison_rank < self.team.size:
            return 0
        return status.poison_since

    def blames(self):
        """Whom this rank gave up for, as in ``name``; itself where it was nobody's fault."""
        cdef Status *status = status_of(&self.team.layout, self.team.base, self.team.rank)
        blamed = status.poison_rank
        return self.name(blamed if blamed >= 0 else self.team.rank)

    def call_in_words(self, int awaited):
        """The call that this rank is in, waiting for ``awaited``."""
        if awaited < 0 and self.outside is not None:
            return self.call_outside()
        return f"call {self.team.call}, {describe_call(self.team.signature, self.team.nbytes)}"

    def name(self, int rank):
        """A rank of this engine as the communicator's user numbers it.

        Where the communicator spans nodes, this engine has the ranks of one node; numbers from
        its size on stand for the ranks of the communicator.
        """
        if self.names is None:
            return rank
        return self.names[rank] if rank < self.team.size else rank - self.team.size

    # ------------------------------------------------------------------ the watch

    def published_call(self, int rank, uint64_t call):
        """(signature, nbytes) that ``rank`` published for its ``call``; None if not (yet) known."""
        cdef Published *entry = published(&self.team.layout, self.team.base, rank, call)
        cdef uint64_t signature, nbytes
        if load_acquire(&entry.call) != call:
            return None
        signature = load_relaxed(&entry.signature)
        nbytes = load_relaxed(&entry.nbytes)
        # The entry may have been overwritten while we read it: its number says so.
        fence_acquire()
        if load_acquire(&entry.call) != call:
            return None
        return signature, nbytes

    def watch(self, int rank, double seconds):
        """Every 1 to 4 ms of a wait for ``rank``: 0, or why the wait can't succeed."""
        cdef Team *team = &self.team
        cdef int other
        cdef int64_t now
        cdef Status *status
        if self.closed:
            raise MPI.Exception(MPI.ERR_COMM)
        for other in range(team.size):
            if other == team.rank:
                continue
            status = status_of(&team.layout, team.base, other)
            if load_acquire(&status.poison) != 0 and self.concerns_us(other, rank):
                team.awaited_rank = other
                return FAILED_POISONED
        for other in range(team.size):
            entry = None if other == team.rank else self.published_call(other, team.call)
            if entry is not None and not self.compatible(entry):
                team.awaited_rank = other
                return FAILED_MISMATCH
        if rank >= 0 and (self.has_left(rank) or self.has_died(rank)):
            team.awaited_rank = rank
            return FAILED_PEER_DEAD
        now = monotonic_ns()
        if rank < 0 or now - self.looked_at_all > LOOK_AT_ALL_EVERY:
            self.looked_at_all = now
            for other in range(team.size):
                if other != team.rank and self.has_died(other) and self.owes_us(other, rank):
                    team.awaited_rank = other
                    return FAILED_PEER_DEAD
        if 0 < self.config.warn_after <= seconds and not self.warned:
            self.warned = True
            print(f"smcoll: rank {self.name(team.rank)} has waited {seconds:.0f} s for "
                  f"{self.awaited_in_words(rank)} in {self.call_in_words(rank)}",
                  file=sys.stderr, flush=True)
        if 0 < self.config.timeout * self.patience <= seconds:
            return FAILED_TIMEOUT
        return DONE

    cdef bint concerns_us(self, int rank, int awaited):
        """Whether a rank that gave up did so in our call or before: an earlier one completes.

        Whoever is past our call has posted all that it owes to it. If what we wait for is not there
        all the same, that call was another one (looked at once more by who asks).
        """
        cdef Layout *layout = &self.team.layout
        if has_come(status_of(layout, self.team.base, rank).poison_since, self.user_call()):
            return True
        return awaited >= 0 and not has_come(load_acquire(
            &status_of(layout, self.team.base, awaited).current_call), self.team.call)

    cdef bint has_left(self, int rank):
        """Whether a rank freed the communicator or ended, in good order."""
        return load_acquire(&status_of(&self.team.layout, self.team.base, rank).left) != 0

    cdef bint has_died(self, int rank):
        """Whether a rank's process is gone though it never left."""
        return (not self.has_left(rank) and not self.mapping.is_alive(rank)
                and not self.has_left(rank))

    cdef bint owes_us(self, int rank, int awaited):
        """Whether a dead rank did not end the call that we are in: nobody can complete it then.

        What it owed to a call that MPI carries out (``awaited`` < 0), only MPI knows.
        """
        cdef Status *status = status_of(&self.team.layout, self.team.base, rank)
        cdef int64_t beyond = <int64_t> (load_acquire(&status.current_call) - self.team.call)
        return awaited < 0 or beyond < 0 or beyond == 0 and status.busy != 0

    def compatible(self, entry):
        """Whether a peer's published call can be the one that we are in."""
        return entry == (self.team.signature, self.team.nbytes)

    def explain_mismatch(self, uint64_t call):
        """Who called what, for the call that the ranks disagree about."""
        callers = {}
        for rank in range(self.team.size):
            entry = self.published_call(rank, call)
            if entry is None:
                continue
            callers.setdefault(describe_call(*entry), []).append(self.name(rank))
        sides = sorted(callers.items(), key=lambda side: (len(side[1]), side[1]))
        text = ", ".join(f"{in_words(ranks)} called {what}" for what, ranks in sides)
        if len(sides) == 2 and len(sides[1][1]) > 1:
            text = f"{in_words(sides[0][1])} called {sides[0][0]}, the others {sides[1][0]}"
        if len(sides) < 2 and self.names is not None:
            text += ", another node something else"
        return f"ranks disagree about collective number {call}: {text}"

    def pass_on_poison(self, int rank, where):
        """A peer gave up: the same reason, with the same rank blamed, is ours."""
        cdef Status *status = status_of(&self.team.layout, self.team.base, rank)
        cdef uint64_t reason = load_acquire(&status.poison)
        cdef uint64_t call = status.poison_call
        cdef int blamed = status.poison_rank
        self.poison(reason, blamed, self.at_latest_now(status.poison_since))
        if reason == POISON_MISMATCH:
            return MismatchError, self.explain_mismatch(call)
        if reason == POISON_PEER_DEAD:
            role = self.roles.get(self.name(blamed)) if blamed >= self.team.size else None
            dead = f"rank {self.name(blamed)} has died" + (f", {role}" if role else "")
            return PeerError, f"{dead}, as rank {self.name(rank)} found, during {where}"
        if reason == POISON_PEER_ENDED:
            return PeerError, (f"rank {self.name(blamed)} has freed the communicator or ended, as "
                               f"rank {self.name(rank)} found, during {where}")
        entry = self.published_call(rank, call)
        what = "a collective" if entry is None else describe_call(*entry)
        if reason == POISON_TIMEOUT:
            awaited = "MPI" if blamed < 0 else f"rank {self.name(blamed)}"
            return WaitTimeout, (f"rank {self.name(rank)} waited in vain for {awaited} in its "
                                 f"call {call}, {what}; seen in {where}")
        return PeerError, (f"rank {self.name(blamed)} gave the communicator up in its call {call}, "
                           f"{what}; seen in {where}")

    def explain_absence(self, int rank, where):
        if self.has_left(rank):
            return (f"rank {self.name(rank)} has freed the communicator or ended, while waited "
                    f"for in {where}")
        return f"rank {self.name(rank)} has died, while waited for in {where}"

    def awaited_in_words(self, int rank):
        """Who is awaited, and where that rank is as far as it has published it."""
        if rank < 0:
            return "MPI" if self.outside is None else f"{in_words(self.outside)}, on another node,"
        cdef Status *status = status_of(&self.team.layout, self.team.base, rank)
        cdef uint64_t call = load_acquire(&status.current_call)
        entry = self.published_call(rank, call)
        what = "no collective yet" if entry is None else describe_call(*entry)
        relation = "in or past" if call >= self.team.call else "not beyond"
        return f"rank {self.name(rank)}, which is {relation} its call {call}, {what},"

    def observe(self):
        """Every rank's ``observation.RankView``: what it does and whom it waits for. Local."""
        return Observation(self.mapping.descriptor, self.team.rank).look()

    # ------------------------------------------------------------------ who and where

    @property
    def rank(self):
        return self.team.rank

    @property
    def size(self):
        return self.team.size

    @property
    def oversubscribed(self):
        """Whether ranks outnumber the CPUs that they may use."""
        return self.team.oversubscribed

    @property
    def woken(self):
        """How often another rank, by beginning a call, has cut short a pause in a long wait."""
        return self.team.woken

    @property
    def calls(self):
        """Number of the last call: the same on every rank between two collectives."""
        return self.team.call

    # ------------------------------------------------------------------ the end

    def close(self):
        """Say that we left, and unmap. Local; safe to call twice, and in a forked child."""
        if self.closed:
            return
        is_ours, reserved = self.mapping.is_ours(), self.mapping.bytes_reserved
        self.closed = self.unusable = True
        if is_ours:
            store_release(&self.team.status.left, 1)
            in_a_call = not try_lock(&self.team.status.busy)
            if in_a_call or (self.left_a_call() and self.failure is None):
                # Before anything that may give the GIL up: that call ends, and its program may
                # change arrays that others still read.
                self.poison(POISON_EXCEPTION, self.team.rank, self.user_call())
            self.budget.give_back(reserved)
            if in_a_call:
                # Of another thread, or of the code that a signal handler interrupted: it unmaps.
                return
        self.mapping.close()
