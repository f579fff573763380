"""Messages between pairs of ranks of one node, through the streams or where they lie."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport SIZE_MAX
from libc.stdlib cimport free

from smcoll.barrier cimport agrees_on_bytes
from smcoll.base.signature cimport (
    COLLECTIVE_ALLTOALL, COLLECTIVE_GATHER, COLLECTIVE_SCATTER, COLLECTIVES,
)
from smcoll.buffers.messages cimport Messages
from smcoll.coll.routes cimport (
    AROUND_CACHES, IN_PLACE_ROUTE, THROUGH_CACHES, RouteChoice, begin_by, describe_choice, is_far,
    new_choices, note_call, route_class,
)
from smcoll.coll.streams cimport NEEDS_MEMORY, Exchange, Transfer, begin_exchange, complete_exchange
from smcoll.datatype.convertor cimport start_convertor
from smcoll.engine.call cimport CallProtocol
from smcoll.engine.peer_memory cimport PeerMemory
from smcoll.engine.reservation cimport Reservation
from smcoll.sync.team cimport DONE, FAILED_EXCEPTION, FAILED_MISMATCH

from smcoll.errors import Error

RESULTS = ("through the caches", "around the caches")


cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX


@cython.final
cdef class Exchanges:
    """Carries out what a call's ``Messages`` say, once the streams are reserved."""

    def __cinit__(self, CallProtocol protocol not None, Reservation memory not None,
                  PeerMemory peers not None):
        self.protocol = protocol
        self.memory = memory
        self.peers = peers
        self.team = protocol.team
        self.measured_results_from = SIZE_MAX

    def __dealloc__(self):
        free(self.results)

    cdef measure_results(self, size_t nbytes):
        """From so many bytes on the root of a Gather finds out how it writes its result."""
        self.results = new_choices(THROUGH_CACHES, 2 * COLLECTIVES)
        self.measured_results_from = nbytes

    cdef RouteChoice *choice_of_result(self, int collective, size_t nbytes) noexcept:
        """What knows how to write a result of so many bytes, as long as that is measured."""
        if (collective != COLLECTIVE_GATHER or nbytes < self.measured_results_from
                or nbytes >= self.team.streaming_from[collective]):
            return NULL
        return &self.results[route_class(nbytes)]

    cdef void see_other_root(self, Messages messages) noexcept:
        """Another rank is the root of a Gather. Where roots take turns, the results of all ranks
        compete for the caches: so this rank's first one is written around them. Its length is taken
        to be that of equal blocks, which tells nothing of a Gatherv's."""
        cdef RouteChoice *choice
        cdef int i
        for i in range(messages.sends):
            choice = self.choice_of_result(COLLECTIVE_GATHER,
                                           messages.outgoing[i].nbytes * self.team.size)
            if choice != NULL:
                begin_by(choice, AROUND_CACHES)

    cdef object result_in_use(self, size_t nbytes):
        """(how the root of a Gather writes so many bytes, why); None: it is not measured."""
        cdef RouteChoice *choice = self.choice_of_result(COLLECTIVE_GATHER, nbytes)
        return None if choice == NULL else describe_choice(choice, RESULTS)

    cdef int measured(self, Messages messages, int collective, bint may_be_read) noexcept:
        """``run``, and where the faster way is looked for, what this one took."""
        cdef RouteChoice *choice = NULL
        cdef size_t result = messages.result_bytes()
        cdef bint in_heap = True
        cdef bint streaming = result >= self.team.streaming_from[collective]
        cdef bint receiver_is_far = False
        cdef int status
        if may_be_read:
            choice = self.peers.choice_in_heap(collective, messages.outgoing, messages.sends)
            if choice != NULL:
                in_heap = choice.tried == IN_PLACE_ROUTE
                receiver_is_far = is_far(choice)
                if in_heap and collective == COLLECTIVE_ALLTOALL:
                    # Around the caches or through them: which is faster depends on how much of them
                    # other processes leave. So the two routes differ in it, and the faster one is
                    # found (docs/notebook-heap.md).
                    streaming = result >= 2 * self.team.streaming_from[collective]
                may_be_read = False
            else:
                may_be_read = self.peers.may_be_read(collective, messages.outgoing,
                                                     messages.sends, &choice)
        if collective == COLLECTIVE_GATHER and messages.receives == 0:
            self.see_other_root(messages)
        elif choice == NULL:
            choice = self.choice_of_result(collective, result)
            if choice != NULL:
                streaming = choice.tried == AROUND_CACHES
        status = self.run(messages, collective, may_be_read, in_heap, streaming, receiver_is_far)
        if choice != NULL:
            note_call(self.team, choice, False, collective != COLLECTIVE_SCATTER
                      and collective != COLLECTIVE_GATHER)
        if status == DONE and messages.agreed > 0:
            status = self.compared(messages)
        return status

    cdef int compared(self, Messages messages) noexcept:
        """Whether a message of another length than there is room for is an error of its sender or
        of ours alone: DONE; or do we disagree about the call?"""
        cdef Transfer *message
        cdef int i
        for i in range(messages.receives):
            message = &messages.incoming[i]
            if message.nbytes != message.room and not agrees_on_bytes(self.team, message.peer):
                self.team.awaited_rank = message.peer
                return FAILED_MISMATCH
        return DONE

    cdef int run(self, Messages messages, int collective, bint may_be_read, bint in_heap,
                 bint streaming, bint receiver_is_far) noexcept:
        """DONE or a FAILED code.

        ``collective``: 0 for a stage of a call over several nodes. ``may_be_read``: what is sent,
        in private memory, through the kernel; ``in_heap``: in a shared heap, where it lies.
        ``streaming``: what comes is written around the caches; ``receiver_is_far``: so is what this
        rank writes into the receiver's memory (far, ordinary stores take up to twice as long).
        """
        cdef Exchange exchange
        cdef int status, i
        exchange.team = self.team
        exchange.streams = self.memory.streams
        exchange.outgoing = messages.outgoing
        exchange.incoming = messages.incoming
        exchange.sends = messages.sends
        exchange.receives = messages.receives
        exchange.may_be_read = may_be_read
        exchange.may_be_written = (collective == COLLECTIVE_GATHER
                                   or collective == COLLECTIVE_ALLTOALL)
        exchange.truncation = &messages.truncation
        exchange.own = exchange.own_place = NULL
        if messages.keeps_own:
            exchange.own = &messages.own
            exchange.own_place = &messages.own_place
        exchange.direct_from = self.team.direct_from[collective] if in_heap else SIZE_MAX
        for i in range(messages.receives):
            messages.incoming[i].convertor.streaming = streaming
        if exchange.may_be_written:
            for i in range(messages.sends):
                # (The receiver's result is taken to be as long as ours, in a Gather to be that of
                # equal blocks.)
                messages.outgoing[i].convertor.streaming = receiver_is_far or (
                    streaming if collective == COLLECTIVE_ALLTOALL
                    else messages.outgoing[i].nbytes * self.team.size
                    >= self.team.streaming_from[collective])
        messages.own_place.streaming = streaming
        begin_exchange(&exchange)
        while True:
            status = complete_exchange(&exchange)
            if status != NEEDS_MEMORY:
                break
            self.protocol.take_gil_back()
            try:
                self.place(exchange.unplaced, messages.grown)
            except BaseException as error:
                self.protocol.member.attendant.fail(error)
                status = FAILED_EXCEPTION
                break
        if status != DONE:
            for i in range(messages.sends):
                self.peers.keep(messages.outgoing[i].convertor.address)
            for i in range(messages.receives):
                self.peers.keep(messages.incoming[i].convertor.address)
        return status

    cdef place(self, Transfer *message, list grown):
        """Make room for a message whose length is known now."""
        cdef bytes memory
        if message.nbytes > <size_t> PY_SSIZE_T_MAX:
            raise Error(f"a message of {message.nbytes} bytes: its length in shared memory is "
                        "damaged")
        memory = PyBytes_FromStringAndSize(NULL, message.nbytes)
        grown[message.peer] = memory
        message.room = message.nbytes
        start_convertor(&message.convertor, PyBytes_AS_STRING(memory), NULL, message.nbytes)
