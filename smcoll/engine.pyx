"""The engine of one communicator on one node: its team, mapping, trees and choices.

Everything above it speaks of buffers and operations, everything below of flags and offsets.
"""

import errno
import os
import sys
import weakref
from collections import Counter

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pystate cimport PyThreadState
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from smcoll.algos cimport Operands, Plan, is_inline, needs_data_regions, run_collective
from smcoll.allgather cimport Gathering
from smcoll.atomics cimport (
    fence_acquire, fence_release, load_acquire, load_relaxed, monotonic_ns, store_release, try_lock,
    unlock,
)
from smcoll.barrier cimport (
    COLLECTIVE_ALLREDUCE, COLLECTIVE_BARRIER, COLLECTIVE_BCAST, COLLECTIVE_REDUCE,
    COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_RESERVE, DONE, FAILED_DAMAGED, FAILED_EXCEPTION,
    FAILED_MISMATCH, FAILED_PEER_DEAD, FAILED_POISONED, FAILED_TIMEOUT, POISON_EXCEPTION,
    POISON_MISMATCH, POISON_PEER_DEAD, POISON_TIMEOUT, Attendant, Team, attend_between_calls,
    begin_call, begin_mpi_call, init_team, condition, pack_signature, wait_until,
)
from smcoll.buffers cimport Specification, parse
from smcoll.cursor cimport Cursor, start_cursor
from smcoll.domains cimport Domains
from smcoll.heap cimport HeapView, PeerHeap, heap_keep, own_heap
from smcoll.inline cimport allreduce_inline
from smcoll.kernels cimport (
    OP_MIN, TYPE_INT64, Operation, element_size, reduction_kernel, reduction_kernel_for,
)
from smcoll.operations cimport code_of_op
from smcoll.reduce_scatter cimport Blocks
from smcoll.segment cimport Mapping, Published, Status, published, status_of
from smcoll.streams cimport (
    NEEDS_MEMORY, Exchange, Stream, Transfer, begin_exchange, complete_exchange, init_streams,
)
from smcoll.trees cimport Tree

from mpi4py import MPI

from smcoll.algos import ALGORITHMS, COLLECTIVE_NUMBERS, OBJECT_COLLECTIVES
from smcoll.calls import describe_call, in_words
from smcoll.errors import Error, MismatchError, PeerError, SegmentError, WaitTimeout
from smcoll.observation import Observation
from smcoll.select import decision_for, in_rank_order, override
from smcoll.topology.pages import pages_by_node


cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX
    PyThreadState *PyEval_SaveThread() noexcept nogil
    void PyEval_RestoreThread(PyThreadState *state) noexcept nogil


cdef enum:
    # Why a call can't even begin; beside DONE and the FAILED codes.
    UNUSABLE = 11
    BUSY = 12

cdef enum:
    # Above this many bytes a call gives the GIL up at its start; below, when it first yields.
    RELEASE_GIL_ABOVE = 16384
    # Ranks that wait for the network poll it for so long (ns) before they sleep between polls.
    SLEEP_AFTER_OUTSIDE = 50_000_000
    # Statistics time every call above this size, and one in 64 below: two clock reads would be
    # a visible part of a short call.
    TIME_ALL_ABOVE = 65536

cdef int64_t FOREVER = (<int64_t> 1 << 62)

# How often a wait looks whether ranks other than the awaited one are alive.
cdef int64_t LOOK_AT_ALL_EVERY = 50_000_000

_NO_OP = 31
_NO_TYPE = 63


def _watch(engine_reference, int rank, double seconds):
    engine = engine_reference()
    return 0 if engine is None else engine.watch(rank, seconds)


cdef class Engine:
    """The compiled engine of one communicator.

    Created by ``smcoll.establish`` on every rank alike. ``allreduce``, ``reduce``, ``bcast`` and
    ``barrier`` take an algorithm and radices per call, for benchmarks; programs use ``Comm``.
    """

    def __cinit__(self, Mapping mapping, config, int rank, int size, bint oversubscribed,
                  int instruction_set, poke, budget, uint64_t start=1, places=None, heaps=None):
        self.mapping = mapping
        self.config = config
        self.budget = budget
        self.trees = {}
        self.plans = {}
        self.unfinished = []
        self.instruction_set = instruction_set
        self.sources = <const void **> malloc(3 * size * sizeof(void *))
        self.scratch = <int *> malloc(2 * size * sizeof(int))
        if self.sources == NULL or self.scratch == NULL:
            raise MemoryError()
        memset(&self.team, 0, sizeof(self.team))
        memset(self.choices, 0, sizeof(self.choices))
        memset(self.tallies, 0, sizeof(self.tallies))
        memset(self.mpi_tallies, 0, sizeof(self.mpi_tallies))
        self.team.rank = rank
        self.team.size = size
        self.team.oversubscribed = oversubscribed
        self.domains = Domains(places or [()] * size)
        self.team.domains = &self.domains.view
        self.team.scratch = self.scratch
        self.attendant = Attendant()
        self.attendant.poke = poke
        reference = weakref.ref(self)
        self.attendant.watch = lambda awaited, seconds: _watch(reference, awaited, seconds)
        self.team.attendant = <void *> self.attendant
        self.start = start
        self.patience = 1
        self.roles = {}
        self.team.streaming_size = config.streaming_size
        self.team.direct_above = config.heap_threshold
        if mapping is not None:
            self.team.base = mapping.base
            self.team.layout = mapping.layout
            init_team(&self.team, start)
        if config.spin >= 0:
            self.team.spin = config.spin
        if heaps is not None:
            self.use_heaps(heaps)

    def __dealloc__(self):
        free(self.sources)
        free(self.scratch)
        free(self.streams)
        free(self.heap_views)

    # ------------------------------------------------------------------ set-up

    cdef Tree tree(self, int radix):
        """The tree of this radix: made once, kept as long as the communicator."""
        cdef Tree tree = self.trees.get(radix)
        if tree is None:
            tree = Tree(self.team.size, radix)
            self.trees[radix] = tree
        return tree

    cdef Plan plan(self, int collective, decision):
        cdef Plan plan
        plan.algorithm = decision.number
        plan.fan_in = &self.tree(decision.fan_in).view
        plan.fan_out = &self.tree(decision.fan_out).view
        plan.arity = decision.arity
        plan.section_bytes = min(decision.section_bytes, self.team.layout.segment_size)
        plan.segments = min(decision.segments, self.team.layout.segments)
        plan.pipelined = decision.pipelined
        return plan

    def use(self, decisions):
        """Take over a decision table: ``{collective: [Decision, ...]}``, ascending ``up_to``."""
        cdef int number, i
        self.decisions = decisions
        for collective, rows in decisions.items():
            number = COLLECTIVE_NUMBERS[collective]
            if len(rows) > MAX_CHOICES:
                raise ValueError(f"more than {MAX_CHOICES} rows for {collective}")
            for i, row in enumerate(rows):
                self.table[number][i].up_to = row.up_to
                self.table[number][i].plan = self.plan(number, row)
            self.choices[number] = len(rows)

    cdef use_heaps(self, heaps):
        """Of every rank, as mapped here; None for the own one."""
        cdef PeerHeap peer
        cdef int rank
        self.heap_views = <HeapView *> malloc(self.team.size * sizeof(HeapView))
        if self.heap_views == NULL:
            raise MemoryError()
        for rank in range(self.team.size):
            if heaps[rank] is None:
                self.heap_views[rank] = own_heap()
            else:
                peer = heaps[rank]
                self.heap_views[rank] = peer.view
        self.heaps = heaps
        self.team.heaps = self.heap_views

    cdef void keep(self, const void *buffer) noexcept nogil:
        """This rank leaves a call in which others may still use ``buffer`` where it lies."""
        if self.team.heaps != NULL:
            heap_keep(buffer)

    cdef const Plan *choose(self, int collective, size_t nbytes) noexcept nogil:
        cdef int i, last = self.choices[collective] - 1
        for i in range(last):
            if nbytes <= self.table[collective][i].up_to:
                return &self.table[collective][i].plan
        return &self.table[collective][last].plan

    cdef reduction_kernel kernel_of(self, int op, int element_type) noexcept:
        return reduction_kernel_for(op, element_type, self.instruction_set)

    # ------------------------------------------------------------------ entering and leaving

    cdef int enter(self) except -1:
        """Before a call publishes anything: what is wrong here stays here (DESIGN rule 13)."""
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
        mine = describe_call(team.signature, team.nbytes)
        where = f"call {team.call}, {mine}"
        blamed = team.awaited_rank
        if status == FAILED_EXCEPTION:
            error = self.attendant.take_failure()
            if hasattr(error, "blamed"):
                # From another node, whose ranks have no word in this segment.
                self.give_up(error, team.size + error.blamed)
                raise error
            self.poison(POISON_EXCEPTION, team.rank)
            self.failure = (Error, f"rank {self.name(team.rank)} was interrupted in {where}: "
                                   f"{type(error).__name__}")
            raise error
        if status == FAILED_MISMATCH:
            self.poison(POISON_MISMATCH, blamed)
            self.failure = (MismatchError, self.explain_mismatch(team.call))
        elif status == FAILED_POISONED:
            self.failure = self.pass_on_poison(blamed, where)
        elif status == FAILED_DAMAGED:
            self.poison(POISON_EXCEPTION, blamed)
            self.failure = (Error, f"rank {self.name(blamed)} says that its buffers lie where its "
                                   f"shared heap is not, in {where}")
        elif status == FAILED_TIMEOUT:
            outside = blamed < 0 and self.outside is not None
            self.poison(POISON_TIMEOUT, team.size + self.outside[0] if outside else blamed)
            self.failure = (WaitTimeout, f"waited {self.config.timeout:g} s for "
                                         f"{self.awaited_in_words(blamed)} in {where}")
        else:
            self.poison(POISON_PEER_DEAD, blamed)
            self.failure = (PeerError, self.explain_absence(blamed, where))
        kind, message = self.failure
        raise kind(message)

    def poison(self, uint64_t reason, int blamed):
        """Tell every rank that waits, now or later, that this one has given up, and why."""
        cdef Status *status = self.team.status
        status.poison_call = self.team.call
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
            self.poison(POISON_EXCEPTION, self.team.rank)
            self.failure = (Error, f"rank {self.name(self.team.rank)} abandoned the communicator")
            self.unusable = True

    def give_up(self, error, int blamed):
        """The same for a reason that was found outside of the segment; ``blamed`` as in names."""
        if not self.closed and self.failure is None:
            reasons = {PeerError: POISON_PEER_DEAD, MismatchError: POISON_MISMATCH,
                       WaitTimeout: POISON_TIMEOUT}
            self.poison(reasons.get(type(error), POISON_EXCEPTION), blamed)
            self.failure = (type(error), str(error))
            self.unusable = True

    def blames(self):
        """Whom this rank gave up for, as in ``name``; itself where it was nobody's fault."""
        cdef Status *status = status_of(&self.team.layout, self.team.base, self.team.rank)
        blamed = <int> status.poison_rank
        return self.name(blamed if blamed >= 0 else self.team.rank)

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
        """About every millisecond of a wait for ``rank``: 0, or why the wait can't succeed."""
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
            if load_acquire(&status.poison) != 0:
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
                  f"{self.awaited_in_words(rank)} in call {team.call}, "
                  f"{describe_call(team.signature, team.nbytes)}", file=sys.stderr, flush=True)
        if 0 < self.config.timeout * self.patience <= seconds:
            return FAILED_TIMEOUT
        return DONE

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
        cdef int blamed = <int> status.poison_rank
        self.poison(reason, blamed)
        if reason == POISON_MISMATCH:
            return MismatchError, self.explain_mismatch(call)
        if reason == POISON_PEER_DEAD:
            role = self.roles.get(self.name(blamed)) if blamed >= self.team.size else None
            dead = f"rank {self.name(blamed)} has died" + (f", {role}" if role else "")
            return PeerError, f"{dead}, as rank {self.name(rank)} found, during {where}"
        entry = self.published_call(rank, call)
        what = "a collective" if entry is None else describe_call(*entry)
        if reason == POISON_TIMEOUT:
            awaited = "MPI" if blamed < 0 else f"rank {self.name(blamed)}"
            return WaitTimeout, (f"rank {self.name(rank)} waited in vain for {awaited} in its "
                                 f"call {call}, {what}; seen in {where}")
        return PeerError, (f"rank {self.name(blamed)} gave the communicator up in its call {call}, "
                           f"{what}; seen in {where}")

    def explain_absence(self, int rank, where):
        cdef Status *status = status_of(&self.team.layout, self.team.base, rank)
        if load_acquire(&status.left) != 0:
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

    # ------------------------------------------------------------------ the data regions

    cdef int have_data_regions(self, int collective, const Plan *plan, size_t nbytes,
                               uint64_t signature) except -1:
        """CARRIED_OUT when the call can go on, USE_MPI when all ranks agree that it can't."""
        if not needs_data_regions(&self.team, collective, plan.algorithm, nbytes):
            return CARRIED_OUT
        if self.mapping.data_reserved:
            return CARRIED_OUT
        if self.data_refused:
            if self.config.strict:
                raise SegmentError("the data regions could not be reserved")
            return USE_MPI
        return self.reserve(DATA_REGIONS, signature, nbytes)

    cdef int have_streams(self, uint64_t signature) except -1:
        """The same for the streams."""
        if self.mapping.streams_reserved:
            return CARRIED_OUT
        if self.streams_refused:
            if self.config.strict:
                raise SegmentError("the streams could not be reserved")
            return USE_MPI
        return self.reserve(STREAMS, signature, 0)

    def reserve_data(self):
        """Reserve the data regions and the streams now, not at first use. Collective."""
        cdef uint64_t signature = pack_signature(COLLECTIVE_RESERVE, _NO_OP, _NO_TYPE, 0, 0, 0, 0)
        # Where the first could not be had the second is left for when a call needs it.
        if self.reserve(DATA_REGIONS, signature, 0) == CARRIED_OUT:
            self.reserve(STREAMS, signature, 0)
        self.continues = False

    cdef reserve_part(self, int part):
        if part == DATA_REGIONS:
            self.mapping.reserve_data()
            return
        self.streams = <Stream *> malloc(self.team.size * sizeof(Stream))
        if self.streams == NULL:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        self.mapping.reserve_streams()
        init_streams(&self.team, self.streams, self.start)

    cdef map_of_peers(self, int part):
        if part == DATA_REGIONS:
            self.mapping.map_data_of_peers()
        else:
            self.mapping.map_streams_of_peers()

    cdef reserve_mine(self, int part, size_t wanted):
        """This rank's part; the problem, or None."""
        try:
            self.budget.claim(wanted, self.mapping.kind)
        except (OSError, MemoryError) as error:
            return error
        try:
            self.reserve_part(part)
        except (OSError, MemoryError) as error:
            self.budget.give_back(wanted)
            return error
        except BaseException:
            self.budget.give_back(wanted)
            raise
        return None

    cdef int reserve(self, int part, uint64_t signature, uint64_t nbytes) except -1:
        """Reserve the data regions or the streams on all ranks, or on none (DESIGN rules 4, 5).

        ``signature`` and ``nbytes``: of the call that needs them, for the ranks to compare.
        """
        cdef int64_t mine = 1, everyone = 0
        cdef int status
        cdef size_t wanted = (self.team.layout.data if part == DATA_REGIONS
                              else self.team.layout.streams)
        cdef Operation minimum
        # First of all: a call that is refused here must leave nothing changed.
        self.enter()
        try:
            problem = self.reserve_mine(part, wanted)
        except BaseException:
            unlock(&self.team.status.busy)
            raise
        mine = problem is None
        begin_call(&self.team, signature, nbytes)
        minimum.kernel = self.kernel_of(OP_MIN, TYPE_INT64)
        status = allreduce_inline(&self.team, <const char *> &mine, <char *> &everyone, 8, 1,
                                  &minimum, self.sources)
        self.leave(status)
        # What needed the memory follows at once, on all ranks.
        self.continues = True
        if everyone:
            self.map_of_peers(part)
            return CARRIED_OUT
        if mine:
            self.budget.give_back(wanted)
        title = "data regions" if part == DATA_REGIONS else "streams"
        affected = "large messages" if part == DATA_REGIONS else "Gather, Scatter and Alltoall"
        if part == DATA_REGIONS:
            self.mapping.give_data_back()
            self.data_refused = True
        else:
            self.mapping.give_streams_back()
            self.streams_refused = True
        message = (f"the {title} ({wanted} bytes per rank) could not be "
                   f"reserved{'' if problem is None else f': {problem}'}")
        if self.config.strict:
            raise SegmentError(message)
        if self.team.rank == 0:
            print(f"smcoll: {message}; {affected} of this communicator go through MPI",
                  file=sys.stderr, flush=True)
        return USE_MPI

    # ------------------------------------------------------------------ collectives on raw memory

    cdef int64_t started(self, Tally *tally, size_t nbytes) noexcept:
        tally.calls += 1
        tally.nbytes += nbytes
        self.team.direct_bytes = 0
        if nbytes > TIME_ALL_ABOVE or (tally.calls & 63) == 1:
            return monotonic_ns()
        return 0

    cdef int64_t went_on(self, Tally *tally, size_t nbytes) noexcept:
        """A call's second stage: timed where the first one was."""
        if nbytes <= TIME_ALL_ABOVE and (tally.calls & 63) != 1:
            return 0
        tally.timed_calls -= 1
        return monotonic_ns()

    cdef void finished(self, Tally *tally, int64_t start) noexcept:
        tally.direct_bytes += self.team.direct_bytes
        if start != 0:
            tally.timed_calls += 1
            tally.timed_ns += monotonic_ns() - start

    cdef int carry_out_stage(self, int collective, uint64_t signature, uint64_t nbytes,
                             const Operands *operands, const Plan *plan, void *details) except -1:
        """One stage of a call that spans nodes, of ``nbytes`` bytes in all.

        The memory that it needs is there: that was agreed between the nodes.
        """
        cdef int status
        self.continues = True
        self.enter()
        begin_call(&self.team, signature, nbytes)
        self.release_gil_if_long(operands.nbytes)
        status = run_collective(&self.team, collective, plan, operands, details)
        return self.leave(status)

    cdef int carry_out(self, int collective, uint64_t signature, const Operands *operands,
                       const Plan *plan, void *details) except -1:
        """One collective on raw memory: CARRIED_OUT, or USE_MPI where all ranks agree on that."""
        cdef Tally *tally = &self.tallies[collective][plan.algorithm]
        cdef int64_t start
        cdef int status
        if self.have_data_regions(collective, plan, operands.nbytes, signature) == USE_MPI:
            return USE_MPI
        self.enter()
        start = self.started(tally, operands.nbytes)
        begin_call(&self.team, signature, operands.nbytes)
        self.release_gil_if_long(operands.nbytes)
        status = run_collective(&self.team, collective, plan, operands, details)
        self.finished(tally, start)
        if status != DONE:
            self.keep(operands.send)
            self.keep(operands.recv)
        return self.leave(status)

    cdef int allreduce_nogil(self, const void *send, void *recv, size_t elements, int element_type,
                             int op) except -1 nogil:
        """Allreduce on raw pointers for other compiled code, called without the GIL.

        ``element_type`` and ``op``: TYPE_ and OP_ numbers of ``smcoll.kernels``; ``send`` and
        ``recv`` may be the same. USE_MPI where all ranks agree that it can't be done here.
        """
        cdef Operation operation
        cdef Operands operands
        cdef const Plan *plan
        cdef uint64_t signature
        cdef int status
        operation.kernel = reduction_kernel_for(op, element_type, self.instruction_set)
        if operation.kernel == NULL:
            with gil:
                raise MPI.Exception(MPI.ERR_OP)
        self.fill_operands(&operands, <const char *> send, <char *> recv, elements,
                           element_size(element_type), &operation, 0)
        plan = self.choose(COLLECTIVE_ALLREDUCE, operands.nbytes)
        signature = signature_of(COLLECTIVE_ALLREDUCE, op, element_type, plan, 0)
        if not self.mapping.data_reserved and needs_data_regions(
                &self.team, COLLECTIVE_ALLREDUCE, plan.algorithm, operands.nbytes):
            with gil:
                if self.have_data_regions(COLLECTIVE_ALLREDUCE, plan, operands.nbytes,
                                          signature) == USE_MPI:
                    return USE_MPI
        status = self.enter_without_gil()
        if status != DONE:
            with gil:
                self.explain_refusal(status)
        self.tallies[COLLECTIVE_ALLREDUCE][plan.algorithm].calls += 1
        self.tallies[COLLECTIVE_ALLREDUCE][plan.algorithm].nbytes += operands.nbytes
        begin_call(&self.team, signature, operands.nbytes)
        status = run_collective(&self.team, COLLECTIVE_ALLREDUCE, plan, &operands, NULL)
        if status != DONE:
            self.keep(send)
            self.keep(recv)
        if self.closed:
            with gil:
                return self.leave_for_good(status)
        unlock(&self.team.status.busy)
        if status != DONE:
            with gil:
                self.fail(status)
        return CARRIED_OUT

    cdef int barrier_(self, const Plan *plan) except -1:
        cdef Operands operands
        operands.send = operands.recv = NULL
        operands.nbytes = 0
        return self.carry_out(
            COLLECTIVE_BARRIER, signature_of(COLLECTIVE_BARRIER, _NO_OP, _NO_TYPE, plan, 0),
            &operands, plan, NULL)

    cdef int bcast_(self, char *buffer, size_t nbytes, int root, const Plan *plan,
                    int collective=COLLECTIVE_BCAST) except -1:
        cdef Operands operands
        operands.send = operands.recv = buffer
        operands.nbytes = operands.elements = nbytes
        operands.element_size = 1
        operands.operation = NULL
        operands.root = root
        operands.sources = self.sources
        return self.carry_out(collective, signature_of(collective, _NO_OP, _NO_TYPE, plan, root),
                              &operands, plan, NULL)

    cdef int reduction_(self, int collective, const char *send, char *recv, size_t elements,
                        int element_type, int op, int root, const Plan *plan) except -1:
        """A reduction by a kernel in which all ranks have as many elements."""
        cdef Operation operation
        cdef Operands operands
        operation.kernel = self.kernel_of(op, element_type)
        self.fill_operands(&operands, send, recv, elements, element_size(element_type),
                           &operation, root)
        return self.carry_out(collective, signature_of(collective, op, element_type, plan, root),
                              &operands, plan, NULL)

    cdef int reduce_(self, const char *send, char *recv, size_t elements, int element_type, int op,
                     int root, const Plan *plan) except -1:
        return self.reduction_(COLLECTIVE_REDUCE, send, recv, elements, element_type, op, root,
                               plan)

    cdef int allreduce_(self, const char *send, char *recv, size_t elements, int element_type,
                        int op, const Plan *plan) except -1:
        return self.reduction_(COLLECTIVE_ALLREDUCE, send, recv, elements, element_type, op, 0,
                               plan)

    cdef int reduce_scatter_(self, const char *send, char *recv, const Blocks *blocks,
                             int element_type, int op, const Plan *plan) except -1:
        """Every rank gets its block of the vector, reduced."""
        cdef Operation operation
        cdef Operands operands
        cdef size_t unit = element_size(element_type)
        if not self.holds(plan, unit):
            return USE_MPI
        operation.kernel = self.kernel_of(op, element_type)
        self.fill_operands(&operands, send, recv, blocks.begin[self.team.size] // unit, unit,
                           &operation, 0)
        return self.carry_out(
            COLLECTIVE_REDUCE_SCATTER,
            signature_of(COLLECTIVE_REDUCE_SCATTER, op, element_type, plan, 0), &operands, plan,
            <void *> blocks)

    cdef int allgather_(self, Gathering *blocks, int collective, const Plan *plan) except -1:
        """Every rank gets everybody's block."""
        cdef Operands operands
        self.fill_operands(&operands, blocks.send.address, NULL, blocks.longest, 1, NULL, 0)
        return self.carry_out(collective, signature_of(collective, _NO_OP, _NO_TYPE, plan, 0),
                              &operands, plan, blocks)

    cdef bint holds(self, const Plan *plan, size_t element) noexcept:
        """Whether each rank's slice of half a section, as algorithms cut it, holds an element."""
        return 2 * element * <size_t> self.team.size <= plan.section_bytes

    cdef const Plan *ordered_plan(self, collective, size_t nbytes, bint commutes) except NULL:
        """What an operation follows that may not commute: operands in rank order then."""
        cdef _KeptPlan kept
        number = COLLECTIVE_NUMBERS[collective]
        if commutes:
            return self.choose(number, nbytes)
        row = in_rank_order(self.decisions, collective, nbytes)
        key = (collective, row.up_to, "in rank order")
        kept = self.plans.get(key)
        if kept is None:
            kept = _KeptPlan()
            kept.plan = self.plan(number, row)
            self.plans[key] = kept
        return &kept.plan

    cdef void fill_operands(self, Operands *operands, const char *send, char *recv,
                            size_t elements, size_t unit, const Operation *operation,
                            int root) noexcept nogil:
        operands.send = send
        operands.recv = recv
        operands.elements = elements
        operands.element_size = unit
        operands.nbytes = elements * unit
        operands.operation = operation
        operands.root = root
        operands.sources = self.sources

    cdef int exchange_(self, int collective, int root, Transfer *outgoing, int sends,
                       Transfer *incoming, int receives, size_t nbytes, list grown,
                       int algorithm=0, bint second_stage=False, Cursor *own=NULL,
                       Cursor *own_place=NULL) except -1:
        """Messages between pairs of ranks. Only after ``have_streams`` said that they are there.

        ``nbytes``: what this rank sends and has room for, for the statistics. ``grown``: where the
        incoming messages that grow are put, as bytes, at the place of their rank. ``second_stage``:
        of the same call of the user's. ``own``: this rank's message to itself. Returns how many
        were truncated.
        """
        cdef Tally *tally = &self.tallies[collective][algorithm]
        cdef Exchange exchange
        cdef int64_t began
        cdef int status
        self.enter()
        began = self.went_on(tally, nbytes) if second_stage else self.started(tally, nbytes)
        begin_call(&self.team, stream_signature(collective, root), 0)
        self.release_gil_if_long(nbytes)
        exchange.own = own
        exchange.own_place = own_place
        status = self.run_exchange(&exchange, outgoing, sends, incoming, receives, nbytes, grown)
        self.finished(tally, began)
        self.leave(status)
        return exchange.truncated

    cdef int exchange_stage(self, uint64_t signature, Transfer *outgoing, int sends,
                            Transfer *incoming, int receives, list grown) except -1:
        """The same as a stage of a call that spans nodes."""
        cdef Exchange exchange
        cdef int status
        self.continues = True
        self.enter()
        begin_call(&self.team, signature, 0)
        exchange.own = exchange.own_place = NULL
        status = self.run_exchange(&exchange, outgoing, sends, incoming, receives, 0, grown)
        self.leave(status)
        return exchange.truncated

    cdef int run_exchange(self, Exchange *exchange, Transfer *outgoing, int sends,
                          Transfer *incoming, int receives, size_t nbytes, list grown) noexcept:
        cdef int status, i
        exchange.team = &self.team
        exchange.streams = self.streams
        exchange.outgoing = outgoing
        exchange.incoming = incoming
        exchange.sends = sends
        exchange.receives = receives
        for i in range(receives):
            incoming[i].cursor.streaming = nbytes >= self.team.streaming_size
        begin_exchange(exchange)
        while True:
            status = complete_exchange(exchange)
            if status != NEEDS_MEMORY:
                break
            self.take_gil_back()
            try:
                self.place(exchange.unplaced, grown)
            except BaseException as error:
                self.attendant.fail(error)
                status = FAILED_EXCEPTION
                break
        if status != DONE:
            for i in range(sends):
                self.keep(outgoing[i].cursor.address)
        return status

    cdef place(self, Transfer *message, list grown):
        cdef bytes memory
        if message.nbytes > <size_t> PY_SSIZE_T_MAX:
            raise Error(f"a message of {message.nbytes} bytes: its length in shared memory is "
                        "damaged")
        memory = PyBytes_FromStringAndSize(NULL, message.nbytes)
        grown[message.peer] = memory
        message.room = message.nbytes
        start_cursor(&message.cursor, PyBytes_AS_STRING(memory), NULL, message.nbytes)

    # ------------------------------------------------------------------ one call, one algorithm

    def barrier(self, algorithm=None, fan_in=None, fan_out=None, arity=None):
        """Barrier with an algorithm and radices of the caller's choice; the same on all ranks."""
        cdef Plan plan = self.overridden("barrier", 0, algorithm, fan_in, fan_out, None, None,
                                         arity)
        self.barrier_(&plan)

    def bcast(self, buffer, int root=0, algorithm=None, fan_out=None, section_bytes=None,
              pipelined=None, arity=None):
        """Bcast of a contiguous buffer with an algorithm and radix of the caller's choice."""
        cdef Specification spec = parse(buffer, self.team.rank != root)
        cdef Plan plan = self.overridden("bcast", spec.message.nbytes, algorithm, None, fan_out,
                                         section_bytes, pipelined, arity)
        self.check_root(root)
        check_contiguous(spec)
        self.check_carried_out(self.bcast_(spec.message.address, spec.message.nbytes, root, &plan))

    def reduce(self, sendbuf, recvbuf, op=MPI.SUM, int root=0, algorithm=None, fan_in=None,
               section_bytes=None, pipelined=None, arity=None):
        """Reduce with an algorithm and radix of the caller's choice.

        ``op``: a predefined operation with a kernel; ``recvbuf`` counts at the root only.
        """
        cdef Specification send = parse(sendbuf, False)
        cdef Specification recv = parse(recvbuf, True) if self.team.rank == root else send
        cdef Plan plan = self.overridden("reduce", send.message.nbytes, algorithm, fan_in, None,
                                         section_bytes, pipelined, arity)
        cdef int op_code = self.check_reduction(send, recv, op)
        self.check_root(root)
        self.check_carried_out(self.reduce_(
            send.message.address, recv.message.address, send.message.count,
            send.message.element_type, op_code, root, &plan))

    def allreduce(self, sendbuf, recvbuf, op=MPI.SUM, algorithm=None, fan_in=None, fan_out=None,
                  section_bytes=None, pipelined=None, arity=None):
        """Allreduce with an algorithm and radices of the caller's choice.

        ``op``: a predefined operation with a kernel. Buffers: contiguous, of one element type.
        """
        cdef Specification send = parse(sendbuf, False)
        cdef Specification recv = parse(recvbuf, True)
        cdef Plan plan = self.overridden("allreduce", send.message.nbytes, algorithm, fan_in,
                                         fan_out, section_bytes, pipelined, arity)
        cdef int op_code = self.check_reduction(send, recv, op)
        self.check_carried_out(self.allreduce_(
            send.message.address, recv.message.address, send.message.count,
            send.message.element_type, op_code, &plan))

    cdef Plan overridden(self, collective, size_t nbytes, algorithm, fan_in, fan_out,
                         section_bytes, pipelined, arity):
        cdef _KeptPlan kept
        row = decision_for(self.decisions, collective, nbytes)
        key = (collective, row.up_to, algorithm, fan_in, fan_out, section_bytes, pipelined,
               arity)
        kept = self.plans.get(key)
        if kept is None:
            kept = _KeptPlan()
            kept.plan = self.plan(COLLECTIVE_NUMBERS[collective],
                                  override(row, collective, algorithm, fan_in, fan_out,
                                           section_bytes, pipelined, arity))
            self.plans[key] = kept
        return kept.plan

    cdef check_root(self, int root):
        if not 0 <= root < self.team.size:
            raise MPI.Exception(MPI.ERR_ROOT)

    cdef int check_reduction(self, Specification send, Specification recv, op) except -1:
        cdef int op_code = code_of_op(op)
        check_contiguous(send)
        check_contiguous(recv)
        if (send.message.element_type != recv.message.element_type
                or send.message.count != recv.message.count):
            raise ValueError("mismatch in send and receive count or type")
        if self.kernel_of(op_code, send.message.element_type) == NULL:
            raise MPI.Exception(MPI.ERR_OP)
        return op_code

    cdef check_carried_out(self, int path):
        if path != CARRIED_OUT:
            raise SegmentError("the data regions could not be reserved")

    # ------------------------------------------------------------------ calls that go to MPI

    def through_mpi(self, collective, start_call, int root=0, int op=_NO_OP,
                    int element_type=_NO_TYPE, uint64_t nbytes=0):
        """Carry a collective out by MPI's nonblocking form, completed in the one wait function.

        So its signature is published, and poison, signals and timeouts reach it (DESIGN rule 9).
        ``start_call()`` returns the request.
        """
        cdef int number = COLLECTIVE_NUMBERS[collective], status
        cdef Tally *tally = &self.mpi_tallies[number]
        cdef int64_t start
        cdef _Completion completion
        self.enter()
        start = monotonic_ns()
        tally.calls += 1
        tally.nbytes += nbytes
        # What MPI still refuses here (a truncation by this rank itself) the peers carry out: the
        # call has its number.
        begin_mpi_call(&self.team, pack_signature(number, op, element_type, 255, 0, 0, root),
                       nbytes)
        try:
            request = start_call()
        except BaseException:
            unlock(&self.team.status.busy)
            raise
        completion = _Completion(request)
        # Not slept through: a long message may need MPI all the time.
        status = self.wait_outside(completed, <void *> completion, FOREVER)
        self.finished(tally, start)
        if status != DONE:
            # MPI may still write into the buffers, which `start_call` keeps alive.
            self.unfinished.append((request, start_call))
        self.leave(status)
        if completion.error is not None:
            raise completion.error

    cdef int wait_outside(self, condition holds, void *context, int64_t sleep_after) noexcept:
        """Wait for what does not lie in the segment but is MPI's to bring. DONE or a FAILED code.

        Every poll asks MPI.
        """
        cdef int status
        cdef int64_t usual = self.team.sleep_after
        self.team.awaited_rank = -1
        if holds(context):
            return DONE
        self.team.sleep_after = sleep_after
        status = wait_until(&self.team, holds, context)
        self.team.sleep_after = usual
        self.take_gil_back()
        return status

    cdef int complete_outside(self, condition holds, void *context) except -1:
        """The same as a stage of its own of the call that this rank is in."""
        cdef int status
        self.continues = True
        self.enter()
        status = self.wait_outside(holds, context, SLEEP_AFTER_OUTSIDE)
        return self.leave(status)

    # ------------------------------------------------------------------ what it did and would do

    def stats(self):
        """Rows of calls, bytes and seconds per collective, algorithm and path.

        Seconds are measured on every call above 64 KiB and on one in 64 below, and scaled.
        ``direct_bytes``: what this rank read from and wrote to other ranks' arrays where they lie;
        all else was staged.
        """
        rows = []
        for collective, names in ALGORITHMS.items():
            number = COLLECTIVE_NUMBERS[collective]
            for i, name in enumerate(names):
                add_row(rows, collective, name, "shared memory", &self.tallies[number][i])
            add_row(rows, collective, "MPI's own", "MPI", &self.mpi_tallies[number])
        for title, number in OBJECT_COLLECTIVES.items():
            add_row(rows, title, "direct", "shared memory", &self.tallies[number][0])
        return rows

    def is_inline(self, collective, int algorithm, size_t nbytes):
        """Whether the data of such a call travel in the flag lines."""
        return is_inline(&self.team, COLLECTIVE_NUMBERS[collective], algorithm, nbytes)

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
    def bytes_mapped(self):
        """Size of the communicator's whole mapping."""
        return self.mapping.bytes_total

    @property
    def bytes_reserved(self):
        """Shared memory that this rank has really reserved."""
        return self.mapping.bytes_reserved

    def pages_by_node(self):
        """Pages of this rank's reserved memory by NUMA node; None where the kernel can't say."""
        found = [pages_by_node(*part) for part in self.mapping.reserved_ranges()]
        if None in found:
            return None
        return dict(sum(map(Counter, found), Counter()))

    @property
    def uses_heaps(self):
        """Whether the ranks have mapped each other's shared heaps."""
        return self.team.heaps != NULL

    @property
    def stream_chunk(self):
        """Bytes of a chunk of the streams between pairs of ranks."""
        return self.team.layout.stream_chunk

    @property
    def stream_inline(self):
        """Longest message, in bytes, that travels in a stream's cell."""
        return self.team.layout.stream_inline

    @property
    def segment_name(self):
        """The name that the segment had until all ranks had mapped it."""
        return self.mapping.name

    @property
    def calls(self):
        """Number of the last call: the same on every rank between two collectives."""
        return self.team.call

    # ------------------------------------------------------------------ the end

    def close(self):
        """Say that we left, and unmap. Local; safe to call twice, and in a forked child."""
        if self.closed:
            return
        self.closed = self.unusable = True
        if self.mapping.is_ours():
            store_release(&self.team.status.left, 1)
            self.budget.give_back(self.mapping.bytes_reserved)
            if not try_lock(&self.team.status.busy):
                # In a call of another thread, or of the code that a signal handler interrupted:
                # that one ends, and unmaps.
                self.poison(POISON_EXCEPTION, self.team.rank)
                return
        self.mapping.close()


cdef check_contiguous(Specification spec):
    if not spec.contiguous:
        raise ValueError("the engine takes contiguous data; use the communicator's method")


cdef add_row(list rows, collective, algorithm, path, Tally *tally):
    cdef double seconds = 0
    if tally.calls == 0:
        return
    if tally.timed_calls > 0:
        seconds = tally.timed_ns * 1e-9 / tally.timed_calls * tally.calls
    rows.append({"collective": collective, "algorithm": algorithm, "path": path,
                 "calls": tally.calls, "bytes": tally.nbytes, "seconds": seconds,
                 "direct_bytes": tally.direct_bytes})


cdef class _KeptPlan:
    """A plan with the caller's algorithm and radices, kept for the next such call."""

    cdef Plan plan


cdef class _Completion:
    """The condition that a request of MPI's is complete, for the one wait function."""

    cdef object request
    cdef object error              # what MPI raised: a truncation is this rank's alone

    def __cinit__(self, request):
        self.request = request

    cdef bint test(self):
        try:
            return self.request.Test()
        except MPI.Exception as error:
            self.error = error
            return True


cdef bint completed(void *context) noexcept with gil:
    return (<_Completion> context).test()
