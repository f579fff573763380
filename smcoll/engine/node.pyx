"""The engine of one communicator whose ranks are on one node."""

from libc.stdint cimport SIZE_MAX, int64_t, uint64_t

from smcoll.algos cimport functions_of
from smcoll.barrier cimport use_segments
from smcoll.base.signature cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_BCAST, COLLECTIVE_EXSCAN, COLLECTIVE_OBJECT_BCAST,
    NO_OPERATION, NO_TYPE,
)
from smcoll.buffers.messages cimport Messages
from smcoll.coll.pipeline cimport Call, Plan, fits_lines, has_own_kernels
from smcoll.coll.routes cimport DETOUR_CALLS, ROUTE_CLASSES, RouteChoice, note_call
from smcoll.coll.stores cimport describe_stores
from smcoll.coll.streams cimport chunk_bytes
from smcoll.engine.call cimport CallProtocol
from smcoll.engine.engine cimport Engine, stream_signature
from smcoll.engine.exchanges cimport Exchanges
from smcoll.engine.failure cimport AcrossNodes, FailureDetector
from smcoll.engine.fallback cimport Fallback
from smcoll.engine.learning cimport Learner
from smcoll.engine.member cimport Member
from smcoll.engine.peer_memory cimport PeerMemory
from smcoll.engine.plans cimport Plans
from smcoll.engine.reservation cimport USE_MPI, Reservation
from smcoll.engine.statistics cimport Statistics, Tally, finished, started, went_on
from smcoll.segment cimport Mapping
from smcoll.sync.team cimport DONE
from smcoll.sync.waiting cimport condition

from smcoll.algorithms import STREAMED
from smcoll.algos import COLLECTIVE_NUMBERS
from smcoll.engine.engine import LeftToMPI
from smcoll.sync.observation import Observation

cdef enum:
    # Ranks that wait for the network poll it for so long (ns) before they sleep between polls.
    SLEEP_AFTER_OUTSIDE = 50_000_000


cdef int run_collective(Call *call, int collective) noexcept nogil:
    """Run the algorithm of the call's plan: in the flag lines if the data fit them.

    How much the lines hold: ``rooted_inline_size`` and ``inline_size`` (``base/internals.py``). The
    functions of a plan are named in ``algorithms.TABLE``.
    """
    call.exclusive = collective == COLLECTIVE_EXSCAN
    call.in_lines = fits_lines(call.team, call.plan.functions, call.nbytes)
    if call.in_lines:
        return call.plan.functions.run_inline(call)
    call.streaming = call.nbytes >= call.team.streaming_from[collective]
    # plan_call sets it. Algorithms without sections don't call that.
    call.chosen = NULL
    # Local, no flag is waited for: how many segments of a bank are in use from here on.
    use_segments(call.team, call.plan.segments)
    return call.plan.functions.run(call)


cdef class NodeEngine(Engine):
    """Created by ``comm.setup`` on every rank alike."""

    def __cinit__(self, Mapping mapping, config, int rank, int size, bint oversubscribed,
                  int instruction_set, poke, budget, uint64_t start=1, locations=None):
        """``poke()``: a step of MPI's progress; ``locations``: of the ranks on the hardware."""
        self.rank = rank
        self.size = size
        self.config = config
        self.oversubscribed = oversubscribed
        self.instruction_set = instruction_set
        self.member = Member(mapping, config, rank, size, oversubscribed, instruction_set, poke,
                             budget, start, locations or [()] * size)
        self.team = &self.member.team
        self.domains = self.member.domains
        self.sources = self.member.sources
        self.inline_size = mapping.layout.inline_size
        self.rooted_inline_size = mapping.layout.rooted_inline_size
        self.plans = Plans(size, mapping.layout.segment_size, mapping.layout.segments)
        self.statistics = Statistics()
        self.failures = FailureDetector(self.member)
        self.protocol = CallProtocol(self.member, self.failures)
        self.memory = Reservation(self.member, self.protocol)
        self.peers = PeerMemory(self.member)
        self.exchanges = Exchanges(self.protocol, self.memory, self.peers)
        self.fallback = Fallback(self.protocol)

    # ------------------------------------------------------------------ calls

    cdef void go_on(self) noexcept nogil:
        self.protocol.is_later_stage = True

    cdef void call_is_over(self) noexcept nogil:
        self.protocol.is_later_stage = False

    cdef int carry_out(self, int collective, uint64_t signature, Call *call,
                       const Plan *plan, void *details) except -1 nogil:
        cdef Tally *tally = &self.statistics.carried_out[collective][plan.algorithm]
        cdef RouteChoice *choice = NULL
        cdef int64_t start, entered = 0
        cdef int status
        cdef bint begins
        if (not self.memory.mapping.data_reserved and call.nbytes > 0
                and not fits_lines(self.team, plan.functions, call.nbytes)):
            with gil:
                # All ranks agree on it, in an exchange of its own.
                if self.memory.have_data_regions(signature, call.nbytes) == USE_MPI:
                    return USE_MPI
        call.team = self.team
        call.plan = plan
        call.details = details
        begins = not self.protocol.is_later_stage
        # Local: the lock between this rank's threads, MPI's progress and signals now and then, the
        # number of the user's call.
        self.protocol.enter(call.holds_gil)
        # Where nothing is learned, the largest number: this is never true.
        if self.team.number >= self.plans.quiet_until:
            entered = self.let_learn(collective, call, begins)
        if self.peers.chooses_for_all:
            choice = self.peers.choose_for_all(collective, call)
        start = started(tally, call.nbytes)
        tally.from_c += self.from_c
        self.team.direct_bytes = 0
        # Sets what our flag lines say of this call, tells it to ranks that wait in vain, wakes
        # those that sleep. A long call gives the GIL up, `leave` takes it back.
        self.protocol.publish(signature, call.nbytes, call.nbytes)
        status = run_collective(call, collective)
        if entered != 0:
            self.learner.depart(entered)
        if choice != NULL:
            note_call(self.team, choice, True, False)
        finished(tally, start, self.team.direct_bytes)
        if status != DONE:
            self.peers.keep(call.send)
            self.peers.keep(call.recv)
        return self.protocol.leave(status)

    cdef int exchange(self, int collective, int root, Messages messages, size_t nbytes,
                      int algorithm=0, bint second_stage=False) except -1:
        cdef Tally *tally = &self.statistics.carried_out[collective][algorithm]
        cdef int64_t start
        cdef int status
        if second_stage:
            self.go_on()
        self.protocol.enter(True)
        start = went_on(tally, nbytes) if second_stage else started(tally, nbytes)
        tally.from_c += self.from_c and not second_stage
        self.team.direct_bytes = 0
        self.protocol.publish(stream_signature(collective, root), messages.agreed, nbytes)
        status = self.exchanges.measured(messages, collective, algorithm == 0)
        finished(tally, start, self.team.direct_bytes)
        return self.protocol.leave(status)

    def through_mpi(self, collective, start_call, int root=0, int op=NO_OPERATION,
                    int element_type=NO_TYPE, uint64_t nbytes=0):
        """Carry a collective out by MPI's nonblocking form; ``start_call()`` returns the request.

        LeftToMPI where the call came from C.
        """
        if self.from_c:
            self.call_is_over()
            raise LeftToMPI
        cdef int number = COLLECTIVE_NUMBERS[collective]
        self.fallback.carry_out(start_call, number, root, op, element_type, nbytes,
                                &self.statistics.left_to_mpi[number])

    # ------------------------------------------------------------------ what it learns

    cdef int64_t let_learn(self, int collective, const Call *call, bint begins) except -1 nogil:
        """Look at a call of which nothing is published yet. When it began (ns); 0: not measured.

        Rank 0 may tell all ranks which plan calls follow from the next one on (docs/learning.md).
        """
        if begins and self.learner.count(collective, call.plan, call.nbytes):
            with gil:
                self.lead(collective, call.nbytes)
        if has_own_kernels(call):
            return self.learner.arrive(collective, call.plan, call.nbytes)
        return 0

    cdef int lead(self, int collective, size_t nbytes) except -1:
        """In a call of which nothing is published."""
        try:
            self.learner.lead(collective, nbytes)
        except BaseException:
            # Of a signal handler: as if it had come before the call (protocol rule 13).
            self.team.number -= 1
            self.protocol.turn_away()
            raise
        return 0

    def learn(self, variants, known, kind, int cpus, bint explores):
        """Follow what was found for such communicators. Between two calls, alike on all ranks.

        ``variants``: ``{collective: (Decision, ...)}``; ``known``: ``[(collective, class, variant,
        runner-up), ...]``, variants as numbers from 1 on; ``kind``: a ``tuning.learned.Kind``;
        ``cpus``: how many the ranks may use; ``explores``: find out more.
        """
        self.learner = Learner(self.plans, kind, self.member.mapping.inline_sizes)
        self.learner.start(self.member, variants, known, cpus, explores)

    @property
    def lessons(self):
        """Rank 0's: ``{(collective, class): Lesson}`` of the classes that were explored."""
        return {} if self.learner is None else dict(self.learner.lessons)

    def what_is_learned(self, collective, size_t nbytes):
        """For such a call: the variant that it follows, None for the table's row; and what was
        found, None where nothing was."""
        return (None, None) if self.learner is None else self.learner.explain(collective, nbytes)

    def lines_of_lessons(self):
        """A line for each class that was explored, on rank 0."""
        return [] if self.learner is None else self.learner.lines()

    def keep_lessons(self):
        """For later jobs on this machine. Local; rank 0 does something."""
        if self.learner is not None:
            self.learner.keep()

    # ------------------------------------------------------------------ memory

    cdef int have_streams(self, uint64_t signature, uint64_t nbytes=0) except -1:
        return self.memory.have_streams(signature, nbytes)

    cdef bint holds(self, const Plan *plan, size_t element) noexcept nogil:
        return 2 * element * <size_t> self.size <= plan.section_bytes

    cdef const Plan *ordered_plan(self, collective, size_t nbytes, bint commutes) except NULL:
        return self.plans.choose_in_order(collective, nbytes, commutes)

    def reserve_data(self):
        """Reserve the data regions and the streams now, not at first use. Collective."""
        self.memory.reserve_all()

    @property
    def data_refused(self):
        """Whether the data regions could not be had."""
        return self.memory.data_refused

    @property
    def streams_refused(self):
        """Whether the streams could not be had."""
        return self.memory.streams_refused

    # ------------------------------------------------------------------ set once, on all alike

    def use(self, decisions):
        """As ``Engine.use``; and what is said so is not measured against anything."""
        Engine.use(self, decisions)
        self.peers.choose_no_more(decisions)

    def use_heaps(self, heaps, sizes, measured):
        """Take over every rank's heap; from how many bytes messages are read there; in which
        collectives it is measured whether staging is faster."""
        self.peers.use_heaps(heaps, sizes, measured)

    def use_processes(self, records, sizes, measured):
        """The ranks can read each other's memory through the kernel, from so many bytes on."""
        cdef int number
        self.peers.use_processes(records, sizes, measured)
        if "allgather" in measured:
            for number in range(ROUTE_CLASSES):
                self.detours[number].left = DETOUR_CALLS
        if not self.uses_heaps and "allgather" not in self.config.named:
            self.messages_from = self.team.kernel_copy_from[COLLECTIVE_ALLGATHER]

    def write_around_caches(self, sizes):
        """Results of so many bytes, by collective, with non-temporal stores."""
        for collective, nbytes in sizes.items():
            self.team.streaming_from[<int> COLLECTIVE_NUMBERS[collective]] = nbytes
        self.team.streaming_from[COLLECTIVE_OBJECT_BCAST] = (
            self.team.streaming_from[COLLECTIVE_BCAST])

    def measure_results(self, size_t nbytes):
        """From so many bytes on the root of a Gather finds out whether its result is written around
        the caches."""
        self.exchanges.measure_results(nbytes)

    def use_core_cache(self, size_t nbytes):
        """How much a rank's own cache holds: the same on all ranks, between two calls. 0: none has
        a core to itself."""
        self.team.layout.core_cache = nbytes

    @property
    def core_cache(self):
        """What ``use_core_cache`` said."""
        return self.team.layout.core_cache

    # ------------------------------------------------------------------ a node's part of a call

    def join_nodes(self, AcrossNodes across):
        """From now on these are one node's ranks of a communicator over several."""
        self.failures.across = across

    cdef int begin_synchronising(self) except -1:
        """A synchronising call that spans nodes has its number, and nothing of it is published."""
        if self.learner is not None:
            self.learner.lead_stages()
        return 0

    cdef int carry_out_stage(self, int collective, uint64_t signature, uint64_t nbytes,
                             Call *call, const Plan *plan, void *details) except -1:
        """One stage of a call that spans nodes, of ``nbytes`` bytes in all.

        The memory that it needs is there: that was agreed between the nodes.
        """
        cdef int64_t entered = 0
        cdef int status
        # A stage in flag lines may follow a plan of its own, which is no matter of choice.
        cdef bint is_chosen = (self.learner is not None and has_own_kernels(call)
                               and plan == self.plans.choose(collective, call.nbytes))
        self.go_on()
        call.team = self.team
        call.plan = plan
        call.details = details
        if is_chosen:
            self.learner.count_stage(collective, call.nbytes)
        self.protocol.enter(True)
        if is_chosen:
            entered = self.learner.arrive(collective, plan, call.nbytes)
        self.protocol.publish(signature, nbytes, call.nbytes)
        status = run_collective(call, collective)
        if entered != 0:
            self.learner.depart(entered)
        return self.protocol.leave(status)

    cdef int exchange_stage(self, uint64_t signature, Messages messages) except -1:
        """The same with messages."""
        cdef int status
        self.go_on()
        self.protocol.enter(True)
        self.protocol.publish(signature, 0, 0)
        status = self.exchanges.run(
            messages, 0, False, True,
            messages.result_bytes() >= self.team.streaming_from[0], False)
        return self.protocol.leave(status)

    cdef int wait_outside_stage(self, condition holds, void *context) except -1:
        """The same with a wait for what MPI brings."""
        cdef int status
        self.go_on()
        self.protocol.enter(True)
        status = self.protocol.wait_outside(holds, context, SLEEP_AFTER_OUTSIDE)
        return self.protocol.leave(status)

    # ------------------------------------------------------------------ what it does and did

    def is_inline(self, collective, int algorithm, size_t nbytes):
        """Whether the data of such a call travel in the flag lines."""
        return fits_lines(self.team, functions_of(COLLECTIVE_NUMBERS[collective], algorithm),
                          nbytes)

    def sends_messages(self, collective, size_t nbytes):
        """Whether the data of such a call travel through the streams."""
        return collective in STREAMED or collective == "allgather" and self.sends_blocks(
            self.plans.in_table(COLLECTIVE_ALLGATHER, nbytes), nbytes)

    def stores_in_use(self, int collective, size_t nbytes):
        """(kind of stores, why) for what others read of such a call. By the collective's number."""
        if self.member.closed:
            return "none", "the communicator was freed"
        return describe_stores(self.team, collective, nbytes)

    def around_caches_from(self, collective):
        """From how many bytes on a collective's result goes around the caches; None: never."""
        cdef size_t nbytes = self.team.streaming_from[<int> COLLECTIVE_NUMBERS[collective]]
        return None if nbytes == SIZE_MAX else nbytes

    @property
    def uses_heaps(self):
        """Whether the ranks have mapped each other's shared heaps."""
        return self.team.heaps != NULL

    @property
    def direct_sizes(self):
        """From how many bytes on messages are read in heaps, by collective."""
        return self.peers.direct_sizes

    @property
    def measured_in_heaps(self):
        """Collectives in which it is measured whether staging is faster than a heap."""
        return self.peers.measured_in_heaps

    @property
    def kernel_copy_sizes(self):
        """From how many bytes on they may be read through the kernel, by collective."""
        return self.peers.kernel_copy_sizes

    @property
    def measured_routes(self):
        """Collectives in which it is measured whether the kernel is faster than staging."""
        return self.peers.measured_routes

    def route_in_use(self, collective, size_t nbytes):
        """(route, why) of blocks of ``nbytes`` in private memory; None where it isn't measured."""
        return self.peers.describe_route(<int> COLLECTIVE_NUMBERS[collective],
                                         nbytes * (self.team.size - 1))

    def result_in_use(self, size_t nbytes):
        """(how the root of a Gather writes a result of so many bytes, why); None: by its size."""
        return self.exchanges.result_in_use(nbytes)

    def chunk_bytes(self, collective, size_t nbytes):
        """Bytes of a chunk, in a stream, of a collective's message of ``nbytes`` bytes."""
        return chunk_bytes(self.team, nbytes, collective in ("allgather", "alltoall"))

    @property
    def stream_inline(self):
        """Longest message, in bytes, that travels in a stream's cell."""
        return self.team.layout.stream_inline

    @property
    def calls(self):
        """Number of the last call: the same on every rank between two collectives."""
        return self.team.call

    @property
    def polls(self):
        """How often a wait polls before it yields; 0: another rank needs this rank's CPU."""
        return self.team.spin

    def stats(self):
        """Rows of calls, bytes and seconds per collective, algorithm and path."""
        return self.statistics.rows()

    def observe(self):
        """Every rank's ``observation.RankView``: what it does and whom it waits for. Local."""
        return Observation(self.member.mapping.descriptor, self.rank).look()

    # ------------------------------------------------------------------ the end

    @property
    def closed(self):
        """Whether this rank has left."""
        return self.member.closed

    def abandon(self):
        """Give the communicator up without synchronising: an exception is on its way up."""
        self.failures.abandon()

    def disown(self):
        """In a forked child: the communicator is its parent's, whatever the child does."""
        self.failures.disown()
        self.plans.stop_learning()
        if self.learner is not None:
            self.learner.forget()

    def close(self):
        """Say that we left, and unmap. Local; safe to call twice, and in a forked child."""
        if not self.member.closed:
            # Rank 0's word is read before a call can find out that this is the end.
            self.plans.stop_learning()
            self.protocol.close()
