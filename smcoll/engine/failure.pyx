"""Failures of a call on one node: who gives up poisons its own word, so that nobody waits for it.

Who waits long watches the others: whether they gave up, called something else, left or died. Every
error says who did what, in the numbers of the communicator's user.
"""

import sys
import weakref

cimport cython
from libc.stdint cimport int64_t, uint64_t

from smcoll.base.atomics cimport (
    fence_acquire, fence_release, load_acquire, load_relaxed, monotonic_ns, store_release,
)
from smcoll.engine.member cimport Member
from smcoll.segment cimport Layout, Published, Status, published, status_of
from smcoll.sync.team cimport (
    DONE, FAILED_DAMAGED, FAILED_EXCEPTION, FAILED_MISMATCH, FAILED_PEER_DEAD, FAILED_POISONED,
    FAILED_TIMEOUT, POISON_EXCEPTION, POISON_MISMATCH, POISON_PEER_DEAD, POISON_PEER_ENDED,
    POISON_TIMEOUT, Team,
)

from mpi4py import MPI

from smcoll.errors import FORKED, Error, MismatchError, PeerError, WaitTimeout
from smcoll.sync.calls import describe_call, in_words

# How often a wait looks whether ranks other than the awaited one are alive.
cdef int64_t LOOK_AT_ALL_EVERY = 50_000_000


cdef inline bint has_come(uint64_t call, uint64_t now) noexcept:
    """Whether ``now`` is that call or a later one; 0 stands for all calls. Numbers wrap round."""
    return call == 0 or <int64_t> (now - call) >= 0


@cython.final
cdef class Known:
    """What a rank published of one of its calls.

    No Python class: between its functions' lines signal handlers and other threads may run, which
    must not find a call half given up.
    """

    cdef what(self):
        return describe_call(self.signature, self.nbytes)


cdef bint have_one_history(dict entries):
    cdef Known entry
    return len({entry.history for entry in entries.values()}) == 1


cdef bint are_the_same(dict entries):
    cdef Known entry
    return len({(entry.signature, entry.nbytes) for entry in entries.values()}) == 1


@cython.final
cdef class AcrossNodes:
    """Where a communicator spans nodes: what this node's ranks know of the call over all of them.
    """

    def __cinit__(self, list names, dict roles, look_around, call_in_words):
        """``names``: of this node's ranks in the communicator; ``roles``: of leaders, in words."""
        self.patience = 1
        self.names = names
        self.roles = roles
        self.look_around = look_around
        self.call_in_words = call_in_words


def refuse(bint closed, failure):
    """Raise for a call on a communicator that was freed, or that failed for ``failure``."""
    if closed:
        raise MPI.Exception(MPI.ERR_COMM)
    kind, message = failure
    raise kind(f"{message} (this communicator can't be used any more)")


def _watch(detector_reference, int rank, double seconds):
    detector = detector_reference()
    return 0 if detector is None else detector.watch(rank, seconds)


@cython.final
cdef class FailureDetector:
    """Finds out in a long wait why it can't succeed, and tells others that this rank gave up."""

    def __cinit__(self, Member member not None):
        self.member = member
        self.team = &member.team
        reference = weakref.ref(self)
        member.attendant.watch = lambda awaited, seconds: _watch(reference, awaited, seconds)

    # ------------------------------------------------------------------ giving up

    def refuse(self):
        """Raise what says that this communicator can't be used any more."""
        refuse(self.member.closed, self.failure)

    def fail(self, int status):
        """A call failed: poison our own word, so that nobody waits for us, and raise."""
        self.member.unusable = True
        cdef Team *team = self.team
        blamed = team.awaited_rank
        where = self.call_in_words(blamed)
        if status == FAILED_EXCEPTION:
            error = self.member.attendant.take_failure()
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
            self.failure = (Error, f"what rank {self.name(blamed)} published of its data cannot be "
                                   f"true, in {where}: its shared memory is damaged")
        elif status == FAILED_TIMEOUT:
            outside = self.awaited_outside(blamed)
            self.poison(POISON_TIMEOUT, blamed if outside is None else team.size + outside[0],
                        self.user_call())
            self.failure = (WaitTimeout, f"waited {self.member.config.timeout:g} s for "
                                         f"{self.awaited_in_words(blamed)} in {where}")
        else:
            self.poison(POISON_PEER_ENDED if self.has_left(blamed) else POISON_PEER_DEAD, blamed,
                        self.user_call())
            self.failure = (PeerError, self.explain_absence(blamed, where))
        kind, message = self.failure
        error = kind(message)
        reason = load_acquire(&self.team.status.poison)
        error.ended = reason == POISON_PEER_ENDED
        error.gave_up = reason == POISON_EXCEPTION
        error.passed_on = status == FAILED_POISONED
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
        # Before what the program may now do with arrays that others still read (`peer_buffers`).
        fence_release()

    def disown(self):
        """In a forked child: the communicator is its parent's, whatever the child does."""
        if self.failure is None:
            self.failure = (Error, FORKED)
        self.member.unusable = True

    def abandon(self):
        """Give the communicator up without synchronising: an exception is on its way up."""
        if not self.member.closed and self.failure is None:
            # What it has completed the others will complete, too.
            completed = not self.team.status.busy and not self.left_a_call()
            self.poison(POISON_EXCEPTION, self.team.rank, self.user_call() + completed)
            self.failure = (Error, f"rank {self.name(self.team.rank)} abandoned the communicator")
            self.member.unusable = True

    def give_up(self, error, int blamed):
        """The same for a reason that was found outside of the segment; ``blamed`` as in names."""
        if not self.member.closed and self.failure is None:
            reasons = {PeerError: POISON_PEER_DEAD, MismatchError: POISON_MISMATCH,
                       WaitTimeout: POISON_TIMEOUT}
            reason = reasons.get(type(error), POISON_EXCEPTION)
            if getattr(error, "ended", False):
                reason = POISON_PEER_ENDED
            elif getattr(error, "gave_up", False):
                reason = POISON_EXCEPTION
            self.poison(reason, blamed,
                        self.at_latest_now(getattr(error, "since", self.user_call())))
            self.failure = (type(error), str(error))
            self.member.unusable = True

    cdef uint64_t user_call(self) noexcept:
        """Number of the call that this rank is in or was in last, over all nodes; ours included."""
        return self.team.call if self.across is None else self.across.call

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
        if self.awaited_outside(awaited) is not None:
            return self.across.call_in_words()
        return (f"call {self.team.number}, "
                f"{describe_call(self.team.signature, self.team.nbytes)}")

    def name(self, int rank):
        """A rank of this engine as the communicator's user numbers it.

        Where the communicator spans nodes, these are the ranks of one of them; numbers from
        their count on stand for the ranks of the communicator.
        """
        if self.across is None:
            return rank
        return self.across.names[rank] if rank < self.team.size else rank - self.team.size

    cdef list awaited_outside(self, int awaited):
        """The ranks of another node that this one waits for, as the communicator numbers them."""
        return None if awaited >= 0 or self.across is None else self.across.outside

    # ------------------------------------------------------------------ the watch

    cdef Known published_call(self, int rank, uint64_t call):
        """What ``rank`` published for its ``call``, a ``Known``; None if it is not known (yet)."""
        cdef Published *entry = published(&self.team.layout, self.team.base, rank, call)
        cdef Known known
        if load_acquire(&entry.call) != call:
            return None
        known = Known.__new__(Known)
        known.signature = load_relaxed(&entry.signature)
        known.nbytes = load_relaxed(&entry.nbytes)
        known.history = load_relaxed(&entry.history)
        known.number = load_relaxed(&entry.number)
        # The entry may have been overwritten while we read it: its number says so.
        fence_acquire()
        if load_acquire(&entry.call) != call:
            return None
        return known

    def watch(self, int rank, double seconds):
        """Every 1 to 4 ms of a wait for ``rank``: 0, or why the wait can't succeed."""
        cdef Team *team = self.team
        cdef Known entry
        cdef int other
        cdef int64_t now
        cdef uint64_t warned_in
        cdef Status *status
        if self.across is not None:
            self.across.look_around(seconds)
        if self.member.closed:
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
            if entry is not None and not self.is_ours(entry):
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
        warned_in = team.call + self.user_call()
        if 0 < self.member.config.warn_after <= seconds and self.warned_in != warned_in:
            self.warned_in = warned_in
            print(f"smcoll: rank {self.name(team.rank)} has waited {seconds:.0f} s for "
                  f"{self.awaited_in_words(rank)} in {self.call_in_words(rank)}",
                  file=sys.stderr, flush=True)
        patience = 1 if self.across is None else self.across.patience
        if 0 < self.member.config.timeout * patience <= seconds:
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
        return (not self.has_left(rank) and not self.member.mapping.is_alive(rank)
                and not self.has_left(rank))

    cdef bint owes_us(self, int rank, int awaited):
        """Whether a dead rank did not end the call that we are in: nobody can complete it then.

        What it owed to a call that MPI carries out (``awaited`` < 0), only MPI knows.
        """
        cdef Status *status = status_of(&self.team.layout, self.team.base, rank)
        cdef int64_t beyond = <int64_t> (load_acquire(&status.current_call) - self.team.call)
        return awaited < 0 or beyond < 0 or beyond == 0 and status.busy != 0

    cdef bint is_ours(self, Known entry):
        """Whether a peer's published call can be the one that we are in."""
        return (entry.signature == self.team.signature and entry.nbytes == self.team.nbytes
                and entry.history == self.team.history)

    def explain_mismatch(self, uint64_t call):
        """Who called what, for the first call that the ranks disagree about, at latest ``call``."""
        cdef int i
        for i in range(self.team.layout.ring_entries):
            known = self.published_by_all(call - <uint64_t> i)
            # Up to the first call that they disagree about, the history is the same.
            if have_one_history(known) and not are_the_same(known):
                return self.describe_mismatch(known)
        known = self.published_by_all(call)
        if have_one_history(known):
            return self.describe_mismatch(known)
        return (f"ranks disagree about a collective before number {self.team.number}, too long ago "
                "to say which")

    cdef dict published_by_all(self, uint64_t call):
        """What the ranks published for their ``call``, by rank, as far as that is known."""
        entries = {rank: self.published_call(rank, call) for rank in range(self.team.size)}
        return {rank: entry for rank, entry in entries.items() if entry is not None}

    cdef describe_mismatch(self, dict entries):
        """The same, with each rank's ``Known`` of that call."""
        cdef Known entry
        callers = {}
        for rank, entry in entries.items():
            callers.setdefault(entry.what(), []).append(self.name(rank))
        sides = sorted(callers.items(), key=lambda side: (len(side[1]), side[1]))
        text = ", ".join(f"{in_words(ranks)} called {what}" for what, ranks in sides)
        if len(sides) == 2 and len(sides[1][1]) > 1:
            text = f"{in_words(sides[0][1])} called {sides[0][0]}, the others {sides[1][0]}"
        number = min(entry.number for entry in entries.values())
        if len(sides) < 2 and self.across is not None:
            text += ", another node something else, in this call or before it"
        return f"ranks disagree about collective number {number}: {text}"

    def pass_on_poison(self, int rank, where):
        """A peer gave up: the same reason, with the same rank blamed, is ours."""
        cdef Known entry
        cdef Status *status = status_of(&self.team.layout, self.team.base, rank)
        cdef uint64_t reason = load_acquire(&status.poison)
        cdef uint64_t call = status.poison_call
        cdef int blamed = status.poison_rank
        self.poison(reason, blamed, self.at_latest_now(status.poison_since))
        if reason == POISON_MISMATCH:
            return MismatchError, self.explain_mismatch(call)
        if reason == POISON_PEER_DEAD:
            role = self.across.roles.get(self.name(blamed)) if blamed >= self.team.size else None
            dead = f"rank {self.name(blamed)} has died" + (f", {role}" if role else "")
            return PeerError, f"{dead}, as rank {self.name(rank)} found, during {where}"
        if reason == POISON_PEER_ENDED:
            return PeerError, (f"rank {self.name(blamed)} has freed the communicator or ended, as "
                               f"rank {self.name(rank)} found, during {where}")
        entry = self.published_call(rank, call)
        which = "a call" if entry is None else f"its call {entry.number}, {entry.what()}"
        if reason == POISON_TIMEOUT:
            awaited = "MPI" if blamed < 0 else f"rank {self.name(blamed)}"
            return WaitTimeout, (f"rank {self.name(rank)} waited in vain for {awaited} in "
                                 f"{which}; seen in {where}")
        return PeerError, (f"rank {self.name(blamed)} gave the communicator up in {which}; "
                           f"seen in {where}")

    def explain_absence(self, int rank, where):
        if self.has_left(rank):
            return (f"rank {self.name(rank)} has freed the communicator or ended, while waited "
                    f"for in {where}")
        return f"rank {self.name(rank)} has died, while waited for in {where}"

    def awaited_in_words(self, int rank):
        """Who is awaited, and where that rank is as far as it has published it."""
        cdef Known entry
        if rank < 0:
            outside = self.awaited_outside(rank)
            return "MPI" if outside is None else f"{in_words(outside)}, on another node,"
        cdef Status *status = status_of(&self.team.layout, self.team.base, rank)
        cdef uint64_t call = load_acquire(&status.current_call)
        entry = self.published_call(rank, call)
        if entry is None or entry.signature == 0:
            return f"rank {self.name(rank)}, which has called no collective yet,"
        relation = "in or past" if call >= self.team.call else "not beyond"
        return (f"rank {self.name(rank)}, which is {relation} its call {entry.number}, "
                f"{entry.what()},")
