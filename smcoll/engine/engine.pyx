"""The engine of a communicator, as its methods see it: collectives on raw memory.

``NodeEngine`` carries them out in one node's memory, ``internode.spanning.SpanningEngine`` over
several nodes. Everything above speaks of buffers and operations, everything below of flags and
offsets.
"""

from libc.stdint cimport SIZE_MAX, uint64_t

from smcoll.base.kernels cimport Operation, element_size, reduction_kernel, reduction_kernel_for
from smcoll.base.signature cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_BARRIER, COLLECTIVE_REDUCE_SCATTER, NO_OPERATION, NO_TYPE,
)
from smcoll.buffers.messages cimport Messages
from smcoll.coll.allgather cimport Gathering
from smcoll.coll.pipeline cimport Call, Plan
from smcoll.coll.reduce_scatter cimport Partition
from smcoll.coll.routes cimport end_messages, route_class
from smcoll.engine.reservation cimport CARRIED_OUT, USE_MPI

from smcoll.algorithms import ALGORITHMS
from smcoll.errors import SegmentError

cdef int ALLGATHER_DIRECT = ALGORITHMS["allgather"].index("direct")


class LeftToMPI(Exception):
    """A call from C that is MPI's, on all ranks: C carries it out, by the blocking form."""


cdef class Engine:
    """The interface, and what is the same on one node and over several."""

    def __cinit__(self):
        self.messages_from = SIZE_MAX

    # ------------------------------------------------------------------ what differs

    cdef void go_on(self) noexcept nogil:
        """The next call is a later stage of the user's call: the peers are in it already."""

    cdef void call_is_over(self) noexcept nogil:
        """The user's call has no later stage here after all: MPI carries it out."""

    cdef int carry_out(self, int collective, uint64_t signature, Call *call,
                       const Plan *plan, void *details) except -1 nogil:
        """One collective on raw memory: CARRIED_OUT, or USE_MPI where all ranks agree on that.

        On one node: ``NodeEngine``'s, in ``engine/node.pyx``.
        """
        with gil:
            raise NotImplementedError

    cdef int exchange(self, int collective, int root, Messages messages, size_t nbytes,
                      int algorithm=0, bint second_stage=False) except -1:
        """Messages between pairs of ranks. Only after ``have_streams`` said that they are there.

        ``nbytes``: what this rank sends and has room for, for the statistics. ``second_stage``:
        of the same call of the user's. What was too long stands in ``messages.truncation``.
        """
        raise NotImplementedError

    cdef int have_streams(self, uint64_t signature, uint64_t nbytes=0) except -1:
        """CARRIED_OUT when the streams are there, USE_MPI when all ranks agree that they aren't."""
        raise NotImplementedError

    cdef bint holds(self, const Plan *plan, size_t element) noexcept nogil:
        """Whether each rank's slice of half a section, as algorithms cut it, holds an element."""

    cdef const Plan *ordered_plan(self, collective, size_t nbytes, bint commutes) except NULL:
        """What an operation follows that may not commute: operands in rank order then."""
        raise NotImplementedError

    # ------------------------------------------------------------------ what is the same

    cdef int barrier_(self, const Plan *plan, bint holds_gil) except -1 nogil:
        cdef Call call
        call.send = call.recv = NULL
        call.operation = NULL
        call.nbytes = 0
        call.holds_gil = holds_gil
        return self.carry_out(
            COLLECTIVE_BARRIER, signature_of(COLLECTIVE_BARRIER, NO_OPERATION, NO_TYPE, plan, 0),
            &call, plan, NULL)

    cdef int bcast_(self, int collective, char *buffer, size_t nbytes, int root, const Plan *plan,
                    bint holds_gil) except -1 nogil:
        cdef Call call
        self.fill_call(&call, buffer, buffer, nbytes, 1, NULL, root, holds_gil)
        return self.carry_out(collective,
                              signature_of(collective, NO_OPERATION, NO_TYPE, plan, root),
                              &call, plan, NULL)

    cdef int reduction_(self, int collective, const char *send, char *recv, size_t elements,
                        int element_type, int op, int root, const Plan *plan,
                        bint holds_gil) except -1 nogil:
        """A reduction by a kernel in which all ranks have as many elements."""
        cdef Operation operation
        cdef Call call
        operation.kernel = self.kernel_of(op, element_type)
        self.fill_call(&call, send, recv, elements, element_size(element_type), &operation, root,
                       holds_gil)
        return self.carry_out(collective, signature_of(collective, op, element_type, plan, root),
                              &call, plan, NULL)

    cdef int reduce_scatter_(self, const char *send, char *recv, const Partition *blocks,
                             int element_type, int op, const Plan *plan,
                             bint holds_gil) except -1 nogil:
        """Every rank gets its block of the vector, reduced."""
        cdef Operation operation
        cdef Call call
        cdef size_t unit = element_size(element_type)
        if not self.holds(plan, unit):
            return USE_MPI
        operation.kernel = self.kernel_of(op, element_type)
        self.fill_call(&call, send, recv, blocks.begin[self.size] // unit, unit, &operation, 0,
                       holds_gil)
        return self.carry_out(
            COLLECTIVE_REDUCE_SCATTER,
            signature_of(COLLECTIVE_REDUCE_SCATTER, op, element_type, plan, 0), &call, plan,
            <void *> blocks)

    cdef int allgather_(self, Gathering *blocks, int collective, const Plan *plan,
                        bint holds_gil) except -1 nogil:
        """Every rank gets everybody's block."""
        cdef Call call
        cdef int path
        cdef bint may_send = (blocks.longest >= self.messages_from
                              and collective == COLLECTIVE_ALLGATHER)
        if may_send and self.sends_blocks(plan, blocks.longest):
            with gil:
                if self.exchange_blocks(blocks) == CARRIED_OUT:
                    return CARRIED_OUT
            may_send = False       # the data regions may be there
        # The other of two ranks may write there: for a call that fails (`heap_keep`).
        self.fill_call(&call, blocks.send.address, blocks.recv[(self.rank + 1) % self.size].address,
                       blocks.longest, 1, NULL, 0, holds_gil)
        path = self.carry_out(collective,
                              signature_of(collective, NO_OPERATION, NO_TYPE, plan, 0),
                              &call, plan, blocks)
        if may_send and path == CARRIED_OUT and plan.algorithm == ALLGATHER_DIRECT:
            self.detours[route_class(blocks.longest)].left -= 1
        return path

    cdef bint sends_blocks(self, const Plan *plan, size_t longest) noexcept nogil:
        """Whether an Allgather of ``longest`` bytes is messages. Both ranks find the same."""
        return (longest >= self.messages_from and plan.algorithm == ALLGATHER_DIRECT
                and not self.memory.streams_refused
                and (self.detours[route_class(longest)].left == 0 or self.memory.data_refused))

    cdef int exchange_blocks(self, Gathering *blocks) except -1:
        """An Allgather between two ranks as messages, which may be read where they lie.

        USE_MPI where both agree that there are no streams.
        """
        cdef int other = 1 - self.rank
        cdef Messages messages = Messages(self.size)
        cdef int path
        try:
            path = self.have_streams(stream_signature(COLLECTIVE_ALLGATHER, 0), blocks.longest)
        except SegmentError:
            # Config(strict=True), on both ranks: the data regions may do.
            self.go_on()
            path = USE_MPI
        if path == USE_MPI:
            return USE_MPI
        messages.agreed = blocks.longest
        messages.send(other, blocks.send.address, blocks.send_bytes, blocks.send.runs)
        messages.receive(other, blocks.recv[other].address, blocks.block[other],
                         blocks.recv[other].runs)
        if not blocks.in_place:
            messages.keeps_own = True
            messages.own = blocks.send
            messages.own_place = blocks.recv[self.rank]
        self.exchange(COLLECTIVE_ALLGATHER, 0, messages, blocks.longest)
        blocks.truncation = messages.truncation
        # Counted behind the call: one that an exception has kept this rank from entering does not
        # count here, as it doesn't on the other rank.
        end_messages(&self.detours[route_class(blocks.longest)],
                     not (messages.outgoing[0].is_offered or messages.incoming[0].is_offered))
        return CARRIED_OUT

    cdef void fill_call(self, Call *call, const char *send, char *recv, size_t elements,
                        size_t unit, const Operation *operation, int root,
                        bint holds_gil=True) noexcept nogil:
        call.send = send
        call.recv = recv
        call.elements = elements
        call.element_size = unit
        call.nbytes = elements * unit
        call.operation = operation
        call.root = root
        call.sources = self.sources
        call.holds_gil = holds_gil
        call.staged_by_all = call.peer_is_far = False

    cdef reduction_kernel kernel_of(self, int op, int element_type) noexcept nogil:
        return reduction_kernel_for(op, element_type, self.instruction_set)

    def keep_lessons(self):
        """For later jobs, what this communicator has found about its calls. Local."""

    def lines_of_lessons(self):
        """A line for each class of calls that was explored, on rank 0."""
        return []

    @property
    def bytes_mapped(self):
        """Size of the communicator's whole mapping."""
        return self.member.mapping.bytes_mapped

    @property
    def bytes_reserved(self):
        """Shared memory that this rank has really reserved."""
        return self.member.mapping.bytes_reserved

    @property
    def segment_name(self):
        """The name that the segment had until all ranks had mapped it."""
        return self.member.mapping.name

    @property
    def woken(self):
        """How often another rank, by beginning a call, has cut short a pause in a long wait."""
        return self.member.team.woken

    def pages_by_node(self):
        """Pages of this rank's reserved memory by NUMA node; None where the kernel can't say."""
        return self.memory.pages_by_node()

    @property
    def decisions(self):
        """``{collective: [Decision, ...]}``: what calls follow, by size."""
        return self.plans.decisions

    def use(self, decisions):
        """Decide so from now on: ``{collective: [Decision, ...]}``, ascending ``up_to``.

        Between two calls, alike on all ranks. Collectives that are not in it keep their rows.
        """
        if "allgather" in decisions:
            self.messages_from = SIZE_MAX
        self.plans.use(decisions)
