"""The engine of a communicator over several nodes.

To the communicator's methods it is an engine like any other: they parse for all its ranks and call
it. It carries a collective out by stages in the node's shared memory and messages between nodes
(docs/nodes.md). What it does not compose goes to MPI, by agreement: every condition here follows
from the placement of the ranks and from what MPI requires to be the same on all of them.
"""

from libc.stdint cimport int64_t, uint64_t

from smcoll.base.atomics cimport try_lock, unlock
from smcoll.base.kernels cimport OP_MIN, TYPE_INT64, Operation
from smcoll.base.signature cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_ALLREDUCE, COLLECTIVE_BARRIER, COLLECTIVE_BCAST,
    COLLECTIVE_EXSCAN, COLLECTIVE_OBJECT_BCAST, COLLECTIVE_REDUCE, COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_RESERVE, COLLECTIVE_SCAN, NO_OPERATION, NO_TYPE,
    allgathers_objects, pack_signature, with_counts,
)
from smcoll.buffers.messages cimport Messages
from smcoll.coll.allgather cimport Gathering
from smcoll.coll.pipeline cimport Call, Plan
from smcoll.coll.reduce_scatter cimport Partition
from smcoll.coll.truncation cimport fitting
from smcoll.datatype.convertor cimport copy_message
from smcoll.datatype.operations cimport LocalReduction
from smcoll.engine.engine cimport Engine, stream_signature
from smcoll.engine.failure cimport AcrossNodes
from smcoll.engine.node cimport NodeEngine
from smcoll.engine.plans cimport Plans
from smcoll.engine.reservation cimport CARRIED_OUT, USE_MPI
from smcoll.engine.statistics cimport Statistics, Tally, finished, started, went_on
from smcoll.internode cimport bundles, moving, reducing
from smcoll.internode.between cimport chosen_between
from smcoll.internode.network cimport OF_NOTICES, Network
from smcoll.internode.notices cimport Notices
from smcoll.internode.span cimport Reduction, Span
from smcoll.sync.domains cimport Domains
from smcoll.sync.team cimport DONE
from smcoll.sync.waiting cimport attend_between_calls

from mpi4py import MPI

from smcoll.algos import COLLECTIVE_NUMBERS
from smcoll.engine.call import IN_ANOTHER_CALL
from smcoll.engine.engine import LeftToMPI
from smcoll.engine.failure import refuse
from smcoll.errors import Error, SegmentError

cdef enum:
    # An element must fit a rank's slice of half the smallest section of any node, or all go to MPI.
    SMALLEST_SECTION = 4096


cdef class SpanningEngine(Engine):
    """Made by ``smcoll.comm.setup`` on every rank alike."""

    def __cinit__(self, NodeEngine node, hidden, int tag, placement, config, int rank,
                  bint oversubscribed, leaders, unwatched):
        """``node``: of this node's ranks, of which nobody else makes use; ``hidden``: MPI's
        communicator for messages between nodes, and ``tag`` the first one there; ``leaders`` and
        ``unwatched``: as for ``Notices``.
        """
        self.rank = rank
        self.size = len(placement.node_of)
        self.config = config
        self.oversubscribed = oversubscribed
        self.instruction_set = node.instruction_set
        self.domains = Domains([()] * self.size)
        self.inline_size = node.inline_size
        self.rooted_inline_size = node.rooted_inline_size
        self.plans = Plans(self.size, node.team.layout.segment_size, node.team.layout.segments)
        self.statistics = Statistics()
        self.node = node
        self.member = node.member
        self.memory = node.memory
        self.notices = Notices(hidden, tag + OF_NOTICES, placement, leaders, unwatched)
        self.across = AcrossNodes(
            list(placement.members[placement.node_of[rank]]),
            {members[0]: placement.role(members[0]) for members in placement.members},
            self.notices.look_around, self.notices.call_in_words)
        node.join_nodes(self.across)
        network = Network(hidden, tag, node, self.across, placement, self.notices)
        self.span = Span(node, self.across, network, placement, config, rank)
        self.most_on_a_node = placement.most

    # ------------------------------------------------------------------ what can be composed

    cdef bint composes(self, int collective, Call *call) except -1:
        """Whether there is a composition for this call; a function of what is agreed."""
        if collective in (COLLECTIVE_SCAN, COLLECTIVE_EXSCAN):
            return self.span.placement.in_rank_order
        return not needs_order(collective, call) or self.span.placement.in_rank_order

    cdef const Plan *ordered_plan(self, collective, size_t nbytes, bint commutes) except NULL:
        if collective == "allreduce" and not commutes:
            # A name for a stage that can't keep the order is refused before anything happens.
            self.node.ordered_plan("reduce", nbytes, False)
            if reducing.is_sliced(self.span, nbytes):
                self.node.ordered_plan("reduce_scatter", nbytes, False)
        return self.plans.choose_in_order(collective, nbytes, commutes)

    cdef bint holds(self, const Plan *plan, size_t element) noexcept nogil:
        return 2 * element * <size_t> self.most_on_a_node <= SMALLEST_SECTION

    cdef bint fits_lines(self, int collective, size_t nbytes) except -1:
        """Whether the flag lines are enough, where operands need no order; alike on all nodes."""
        if collective == COLLECTIVE_BARRIER:
            return True
        return (collective in (COLLECTIVE_BCAST, COLLECTIVE_OBJECT_BCAST, COLLECTIVE_REDUCE,
                               COLLECTIVE_ALLREDUCE)
                and nbytes <= self.span.in_lines
                and not reducing.is_sliced(self.span, nbytes)
                and not self.span.reduce_is_named and not self.span.bcast_is_named)

    cdef bint needs_memory(self, int collective, Call *call) except -1:
        """Whether any stage needs data regions or streams; alike on all nodes."""
        return (not self.fits_lines(collective, call.nbytes)
                or needs_order(collective, call))

    cdef int memory_as_agreed(self) except -1:
        """CARRIED_OUT where all nodes have it; else USE_MPI, or the error that was asked for."""
        if not self.data_refused:
            return CARRIED_OUT
        if self.config.strict:
            raise SegmentError("the memory of a communicator over several nodes could not be "
                               "reserved on all of them")
        return USE_MPI

    cdef int agree_on_memory(self, uint64_t signature) except -1:
        """Data regions and streams on all nodes, or on none: then all ranks use MPI for this."""
        cdef Reduction minimum
        cdef Operation operation
        cdef int64_t granted = 1
        cdef int outcome
        if self.memory_agreed:
            return self.memory_as_agreed()
        self.lock()
        self.across.patience = 1
        self.across.call = self.call + 1
        try:
            self.node.reserve_data()
        except SegmentError:
            pass                   # told by all ranks together
        except BaseException as error:
            if self.node.member.unusable:
                self.fail_everywhere(error)
            else:
                self.across.call = self.call
                unlock(&self.in_a_call)        # refused before anything was published
            raise
        granted = not (self.node.data_refused or self.node.streams_refused)
        try:
            # Its node's ranks are in this stage already.
            self.begin_locked(pack_signature(COLLECTIVE_RESERVE, NO_OPERATION, NO_TYPE, 0, 0), 0)
            operation.kernel = self.node.kernel_of(OP_MIN, TYPE_INT64)
            minimum.send = <const char *> &granted
            minimum.recv = <char *> &granted
            minimum.elements = 1
            minimum.unit = 8
            minimum.operation = &operation
            minimum.ordered = False
            minimum.internal = True
            reducing.allreduce(self.span, &minimum)
        except BaseException as error:
            self.fail_everywhere(error)
            raise
        self.end()
        self.memory_agreed = True
        self.data_refused = self.streams_refused = not granted
        outcome = self.memory_as_agreed()
        self.is_later_stage = True
        return outcome

    cdef int have_streams(self, uint64_t signature, uint64_t nbytes=0) except -1:
        return self.agree_on_memory(signature)

    cdef void go_on(self) noexcept nogil:
        self.is_later_stage = True

    cdef void call_is_over(self) noexcept nogil:
        self.is_later_stage = False

    # ------------------------------------------------------------------ one call

    cdef int begin(self, uint64_t signature, uint64_t total, bint synchronises=False) except -1:
        """Before anything is published: what is wrong here stays here (protocol rule 13).

        ``synchronises``: no rank of this node leaves the call before all have entered it.
        """
        cdef int status
        self.lock()
        if not self.is_later_stage:
            status = attend_between_calls(self.node.team)
            if status != DONE:
                self.end()
                raise self.node.member.attendant.take_failure()
            if synchronises:
                self.lead()
        self.begin_locked(signature, total)
        return 0

    cdef int lead(self) except -1:
        """This call may be one in which the node's first rank tells what later ones follow."""
        self.node.team.number += 1
        try:
            self.node.begin_synchronising()
        except BaseException:
            self.end()
            raise
        finally:
            self.node.team.number -= 1
        return 0

    cdef int lock(self) except -1:
        """One call at a time, and none on a communicator that is given up."""
        if self.unusable:
            refuse(self.closed, self.failure)
        if not try_lock(&self.in_a_call):
            raise Error(IN_ANOTHER_CALL)
        return 0

    cdef void begin_locked(self, uint64_t signature, uint64_t total):
        if not self.is_later_stage:
            self.node.team.number += 1
        self.is_later_stage = False
        self.call += 1
        self.across.call = self.call
        self.node.plans.look()
        self.span.begin(self.call, self.node.team.number, signature, total)

    cdef end(self):
        unlock(&self.in_a_call)
        if self.closed:
            self.close_parts()

    cdef fail_everywhere(self, error):
        """This rank can't go on in a call that others are in: tell its node, and the others."""
        unlock(&self.in_a_call)
        if self.closed:
            # By a signal handler or another thread, in this call; the node's segment is unmapped.
            if not MPI.Is_finalized():
                self.span.network.call_back(self.span.scratches)
                self.notices.announce_failure(
                    Error(f"rank {self.rank} freed the communicator in a call"),
                    self.rank, self.rank, self.across.call)
            self.close_parts()
            return
        if self.unusable:
            return
        self.unusable = True
        self.node.failures.give_up(
            error if isinstance(error, Error) else Error(
                f"rank {self.rank} was interrupted: {type(error).__name__}"),
            self.node.size + getattr(error, "blamed", self.rank))
        self.failure = self.node.failures.failure or (Error, str(error))
        if not MPI.Is_finalized():
            self.span.network.call_back(self.span.scratches)
            self.notices.announce_failure(error, self.rank, self.node.failures.blames(),
                                          self.node.failures.failed_since())

    cdef int carry_out(self, int collective, uint64_t signature, Call *call,
                       const Plan *plan, void *details) except -1 nogil:
        # What goes over the network is MPI's to send, through Python.
        with gil:
            return self.carry_out_stages(collective, signature, call, plan, details)

    cdef int carry_out_stages(self, int collective, uint64_t signature, Call *call,
                              const Plan *plan, void *details) except -1:
        cdef Tally *tally = &self.statistics.carried_out[collective][plan.algorithm]
        cdef int64_t start
        if not self.composes(collective, call):
            return USE_MPI
        if collective == COLLECTIVE_ALLGATHER:
            signature = with_counts(
                signature, moving.counts_hash(<const Gathering *> details, self.size))
        if self.needs_memory(collective, call) and self.agree_on_memory(signature) == USE_MPI:
            return USE_MPI
        # Of both, all stages depend on what the node's first rank contributes.
        self.begin(signature, call.nbytes, collective == COLLECTIVE_BARRIER or (
            collective == COLLECTIVE_ALLREDUCE and call.nbytes > 0))
        start = started(tally, call.nbytes)
        tally.from_c += self.from_c
        try:
            self.compose(collective, call, details)
        except BaseException as error:
            self.fail_everywhere(error)
            raise
        finished(tally, start, 0)
        self.end()
        return CARRIED_OUT

    cdef compose(self, int collective, Call *call, void *details):
        cdef Reduction reduction
        reduction.send = call.send
        reduction.recv = call.recv
        reduction.elements = call.elements
        reduction.unit = call.element_size
        reduction.operation = call.operation
        reduction.internal = False
        reduction.ordered = needs_order(collective, call)
        if collective == COLLECTIVE_ALLREDUCE:
            reducing.allreduce(self.span, &reduction)
        elif collective == COLLECTIVE_BCAST or collective == COLLECTIVE_OBJECT_BCAST:
            moving.bcast(self.span, call.recv, call.nbytes, call.root)
        elif collective == COLLECTIVE_REDUCE:
            reducing.reduce_to_root(self.span, &reduction, call.root)
        elif collective == COLLECTIVE_ALLGATHER or allgathers_objects(collective):
            moving.allgather(self.span, <Gathering *> details)
        elif collective == COLLECTIVE_REDUCE_SCATTER:
            reducing.reduce_scatter(self.span, &reduction, <const Partition *> details)
        elif collective == COLLECTIVE_BARRIER:
            reducing.barrier(self.span)
        else:
            reducing.scan(self.span, &reduction, collective == COLLECTIVE_EXSCAN)

    cdef int exchange(self, int collective, int root, Messages messages, size_t nbytes,
                      int algorithm=0, bint second_stage=False) except -1:
        cdef Tally *tally = &self.statistics.carried_out[collective][algorithm]
        cdef int64_t start
        if second_stage:
            self.go_on()
        self.begin(stream_signature(collective, root), 0)
        start = went_on(tally, nbytes) if second_stage else started(tally, nbytes)
        tally.from_c += self.from_c and not second_stage
        try:
            bundles.exchange(self.span, collective, root, messages)
            if messages.keeps_own:
                copy_message(&messages.own, &messages.own_place,
                             fitting(&messages.truncation, self.rank, messages.own.nbytes,
                                     messages.own_place.nbytes))
        except BaseException as error:
            self.fail_everywhere(error)
            raise
        finished(tally, start, 0)
        self.end()
        return 0

    def through_mpi(self, collective, start_call, int root=0, int op=NO_OPERATION,
                    int element_type=NO_TYPE, uint64_t nbytes=0):
        """``NodeEngine.through_mpi``: the nonblocking form, waited for as in shared memory."""
        if self.from_c:
            self.call_is_over()
            raise LeftToMPI
        self.begin(0, 0)
        try:
            self.node.go_on()
            self.node.through_mpi(collective, start_call, root, op, element_type, nbytes)
        except BaseException as error:
            if isinstance(error, Error) or not isinstance(error, MPI.Exception):
                self.fail_everywhere(error)
            else:
                self.end()         # MPI's own refusal is this rank's alone
            raise
        self.end()

    # ------------------------------------------------------------------ what it is

    def describe(self, collective, size_t nbytes):
        """(algorithm, parameters, reasons) between and in the nodes, for ``Comm.explain``.

        ``stages``: algorithms in a node, between nodes, and in a node, as far as they have names.
        """
        cdef Span span = self.span
        reasons = []
        cdef size_t section = min(nbytes, span.section(1))
        parameters = {"nodes": span.nodes}
        if collective == "barrier":
            section = nbytes = 0
        if collective == "allreduce" and reducing.is_sliced(span, nbytes):
            users = reducing.users_of_network(span)
            parameters |= {"network_ranks": users, "section_bytes": span.section(1), "stages": [
                span.stage_name("reduce_scatter", min(nbytes, span.section(1) * <size_t> users),
                                reasons),
                f"slices by {users} ranks of a node",
                span.stage_name("allgather", min(
                    nbytes, span.section(1) * <size_t> users) // <size_t> users, reasons)]}
            return "slices between nodes", parameters, reasons
        if collective == "allgather" and not moving.is_bundled(span, nbytes):
            return "blocks between pairs of ranks", parameters, reasons
        if collective in ("allreduce", "barrier"):
            parameters["between_nodes"] = chosen_between(span, nbytes)
            parameters["stages"] = [
                span.stage_name("reduce", nbytes, reasons), parameters["between_nodes"],
                span.stage_name("bcast", nbytes, reasons)]
        if collective in ("bcast", "reduce"):
            tree = "chain" if moving.is_chained(span, nbytes) and collective == "bcast" else (
                "binomial tree")
            parameters["section_bytes"] = span.section(1)
            parameters["stages"] = [tree, span.stage_name(collective, section, reasons)]
            if collective == "reduce":
                parameters["stages"].reverse()
        if collective in ("gather", "scatter", "alltoall"):
            parameters["bundle_size"] = span.bundle_size
            return "a bundle for each pair of nodes", parameters, reasons
        if collective == "reduce_scatter":
            return "a part for each node", parameters, reasons
        return "leaders", parameters, reasons

    def keep_lessons(self):
        self.node.keep_lessons()

    def lines_of_lessons(self):
        return [f"in the nodes, {line}" for line in self.node.lines_of_lessons()]

    def is_inline(self, collective, int algorithm, size_t nbytes):
        """Whether such a call travels in the flag lines, where operands need no order."""
        return self.fits_lines(COLLECTIVE_NUMBERS[collective], nbytes)

    @property
    def in_rank_order(self):
        """Whether the nodes hold the ranks in their order, as Scan needs it."""
        return self.span.placement.in_rank_order

    def stats(self):
        rows = [row for row in self.statistics.rows() if row["path"] != "MPI"]
        for row in rows:
            row["algorithm"] = "across nodes"
            row["path"] = "shared memory and network"
        return rows + [row | {"reason": "its placement on the nodes, its elements, or memory"}
                       for row in self.node.stats() if row["path"] == "MPI"]

    @property
    def calls(self):
        """Number of the last call: the same on every rank between two collectives."""
        return self.call

    @property
    def uses_heaps(self):
        """Arrays in shared heaps are staged over several nodes."""
        return False

    def reserve_data(self):
        """Reserve everything now. Collective over all nodes."""
        cdef uint64_t number = self.node.team.number
        try:
            self.agree_on_memory(0)
        finally:
            self.is_later_stage = False
            self.node.team.number = number     # no call of the user's

    # ------------------------------------------------------------------ the end

    def disown(self):
        """In a forked child: the communicator is its parent's, whatever the child does."""
        self.node.disown()
        self.failure = self.failure or self.node.failures.failure
        self.unusable = True

    def observe(self):
        """The views of this node's ranks, as ``NodeEngine.observe``."""
        return self.node.observe()

    def abandon(self):
        """Give the communicator up without synchronising: an exception is on its way up."""
        if not self.closed and self.failure is None:
            self.unusable = True
            if self.in_a_call:
                # From a signal handler or another thread, between two stages.
                self.node.failures.leave_uncompleted()
            self.node.abandon()
            self.failure = self.node.failures.failure
            self.notices.announce_failure(
                Error(f"rank {self.rank} gave the communicator up"), self.rank,
                self.rank, self.node.failures.failed_since())

    def close(self):
        """Say that we left, and unmap. Local."""
        if self.closed:
            return
        self.closed = self.unusable = True
        if not try_lock(&self.in_a_call):
            self.notices.leave_in_call(self.across.call)
            self.node.close()      # the call that is on unmaps at its end
            return
        self.close_parts()

    def close_parts(self):
        """Nothing of this communicator is used any more."""
        self.node.close()
        self.notices.close()


cdef bint needs_order(int collective, Call *call) except -1:
    """Whether operands must be combined in rank order.

    Kernels are MPI's own operations, which all commute. Who moves data only has no operation.
    """
    if collective not in (COLLECTIVE_REDUCE, COLLECTIVE_ALLREDUCE, COLLECTIVE_REDUCE_SCATTER,
                          COLLECTIVE_SCAN, COLLECTIVE_EXSCAN):
        return False
    if call.operation.kernel != NULL:
        return False
    return not (<LocalReduction> call.operation.context).op.Is_commutative()
