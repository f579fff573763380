"""The engine of one communicator on one node: its collectives on raw memory.

Everything above it speaks of buffers and operations, everything below of flags and offsets.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint64_t

from smcoll.algos cimport needs_data_regions, run_collective
from smcoll.barrier cimport begin_call, begin_mpi_call
from smcoll.base.atomics cimport monotonic_ns, unlock
from smcoll.base.signature cimport (
    COLLECTIVE_ALLREDUCE, COLLECTIVE_ALLTOALL, COLLECTIVE_BARRIER, COLLECTIVE_BCAST,
    COLLECTIVE_REDUCE, COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_SCATTER, NO_OPERATION, NO_TYPE,
    pack_signature,
)
from smcoll.coll.allgather cimport Gathering
from smcoll.coll.pipeline cimport Call, Plan
from smcoll.coll.reduce_scatter cimport Blocks
from smcoll.coll.routes cimport KERNEL_ROUTE, RouteChoice, add_call, route_class
from smcoll.coll.streams cimport NEEDS_MEMORY, Exchange, Transfer, begin_exchange, complete_exchange
from smcoll.datatype.cursor cimport Cursor, start_cursor
from smcoll.engine.plans cimport MemberWithPlans
from smcoll.engine.reservation cimport CARRIED_OUT, USE_MPI
from smcoll.kernels.kernels cimport Operation, element_size, reduction_kernel, reduction_kernel_for
from smcoll.sync.team cimport DONE, FAILED_EXCEPTION
from smcoll.sync.waiting cimport condition, wait_until

from mpi4py import MPI

from smcoll.algorithms import ALGORITHMS
from smcoll.algos import COLLECTIVE_NUMBERS, OBJECT_COLLECTIVES
from smcoll.errors import Error


cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX


cdef enum:
    # Ranks that wait for the network poll it for so long (ns) before they sleep between polls.
    SLEEP_AFTER_OUTSIDE = 50_000_000
    ATTEND_OUTSIDE_EVERY = 1_000_000
    # Statistics time every call above this size, and one in 64 below: two clock reads would be
    # a visible part of a short call.
    TIME_ALL_ABOVE = 65536

cdef int64_t FOREVER = (<int64_t> 1 << 62)


cdef class Engine(MemberWithPlans):
    """The compiled engine of one communicator.

    Created by ``comm.establish`` on every rank alike.
    """

    def __cinit__(self):
        self.unfinished = []

    cdef reduction_kernel kernel_of(self, int op, int element_type) noexcept:
        return reduction_kernel_for(op, element_type, self.instruction_set)

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
                             Call *call, const Plan *plan, void *details) except -1:
        """One stage of a call that spans nodes, of ``nbytes`` bytes in all.

        The memory that it needs is there: that was agreed between the nodes.
        """
        cdef int status
        self.continues = True
        call.team = &self.team
        call.plan = plan
        call.details = details
        self.enter()
        begin_call(&self.team, signature, nbytes)
        self.release_gil_if_long(call.nbytes)
        status = run_collective(call, collective)
        return self.leave(status)

    cdef int carry_out(self, int collective, uint64_t signature, Call *call,
                       const Plan *plan, void *details) except -1:
        """One collective on raw memory: CARRIED_OUT, or USE_MPI where all ranks agree on that."""
        cdef Tally *tally = &self.tallies[collective][plan.algorithm]
        cdef int64_t start
        cdef int status
        if self.have_data_regions(collective, plan, call.nbytes, signature) == USE_MPI:
            return USE_MPI
        call.team = &self.team
        call.plan = plan
        call.details = details
        self.enter()
        start = self.started(tally, call.nbytes)
        begin_call(&self.team, signature, call.nbytes)
        self.release_gil_if_long(call.nbytes)
        status = run_collective(call, collective)
        self.finished(tally, start)
        if status != DONE:
            self.keep(call.send)
            self.keep(call.recv)
        return self.leave(status)

    cdef int allreduce_nogil(self, const void *send, void *recv, size_t elements, int element_type,
                             int op) except -1 nogil:
        """Allreduce on raw pointers for other compiled code, called without the GIL.

        ``element_type`` and ``op``: TYPE_ and OP_ numbers of ``kernels.kernels``; ``send`` and
        ``recv`` may be the same. USE_MPI where all ranks agree that it can't be done here.
        """
        cdef Operation operation
        cdef Call call
        cdef const Plan *plan
        cdef uint64_t signature
        cdef int status
        operation.kernel = reduction_kernel_for(op, element_type, self.instruction_set)
        if operation.kernel == NULL:
            with gil:
                raise MPI.Exception(MPI.ERR_OP)
        self.fill_call(&call, <const char *> send, <char *> recv, elements,
                       element_size(element_type), &operation, 0)
        plan = self.choose(COLLECTIVE_ALLREDUCE, call.nbytes)
        signature = signature_of(COLLECTIVE_ALLREDUCE, op, element_type, plan, 0)
        if not self.mapping.data_reserved and needs_data_regions(
                &self.team, COLLECTIVE_ALLREDUCE, plan.algorithm, call.nbytes):
            with gil:
                if self.have_data_regions(COLLECTIVE_ALLREDUCE, plan, call.nbytes,
                                          signature) == USE_MPI:
                    return USE_MPI
        status = self.enter_without_gil()
        if status != DONE:
            with gil:
                self.explain_refusal(status)
        self.tallies[COLLECTIVE_ALLREDUCE][plan.algorithm].calls += 1
        self.tallies[COLLECTIVE_ALLREDUCE][plan.algorithm].nbytes += call.nbytes
        begin_call(&self.team, signature, call.nbytes)
        call.team = &self.team
        call.plan = plan
        call.details = NULL
        status = run_collective(&call, COLLECTIVE_ALLREDUCE)
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
        cdef Call call
        call.send = call.recv = NULL
        call.nbytes = 0
        return self.carry_out(
            COLLECTIVE_BARRIER, signature_of(COLLECTIVE_BARRIER, NO_OPERATION, NO_TYPE, plan, 0),
            &call, plan, NULL)

    cdef int bcast_(self, char *buffer, size_t nbytes, int root, const Plan *plan,
                    int collective=COLLECTIVE_BCAST) except -1:
        cdef Call call
        call.send = call.recv = buffer
        call.nbytes = call.elements = nbytes
        call.element_size = 1
        call.operation = NULL
        call.root = root
        call.sources = self.sources
        return self.carry_out(collective,
                              signature_of(collective, NO_OPERATION, NO_TYPE, plan, root),
                              &call, plan, NULL)

    cdef int reduction_(self, int collective, const char *send, char *recv, size_t elements,
                        int element_type, int op, int root, const Plan *plan) except -1:
        """A reduction by a kernel in which all ranks have as many elements."""
        cdef Operation operation
        cdef Call call
        operation.kernel = self.kernel_of(op, element_type)
        self.fill_call(&call, send, recv, elements, element_size(element_type),
                       &operation, root)
        return self.carry_out(collective, signature_of(collective, op, element_type, plan, root),
                              &call, plan, NULL)

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
        cdef Call call
        cdef size_t unit = element_size(element_type)
        if not self.holds(plan, unit):
            return USE_MPI
        operation.kernel = self.kernel_of(op, element_type)
        self.fill_call(&call, send, recv, blocks.begin[self.team.size] // unit, unit, &operation,
                       0)
        return self.carry_out(
            COLLECTIVE_REDUCE_SCATTER,
            signature_of(COLLECTIVE_REDUCE_SCATTER, op, element_type, plan, 0), &call, plan,
            <void *> blocks)

    cdef int allgather_(self, Gathering *blocks, int collective, const Plan *plan) except -1:
        """Every rank gets everybody's block."""
        cdef Call call
        self.fill_call(&call, blocks.send.address, NULL, blocks.longest, 1, NULL, 0)
        return self.carry_out(collective,
                              signature_of(collective, NO_OPERATION, NO_TYPE, plan, 0),
                              &call, plan, blocks)

    cdef void fill_call(self, Call *call, const char *send, char *recv, size_t elements,
                        size_t unit, const Operation *operation, int root) noexcept nogil:
        call.send = send
        call.recv = recv
        call.elements = elements
        call.element_size = unit
        call.nbytes = elements * unit
        call.operation = operation
        call.root = root
        call.sources = self.sources

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
        cdef RouteChoice *choice = NULL
        cdef int64_t began, routed
        cdef int status
        self.enter()
        began = self.went_on(tally, nbytes) if second_stage else self.started(tally, nbytes)
        begin_call(&self.team, stream_signature(collective, root), 0)
        self.release_gil_if_long(nbytes)
        exchange.own = own
        exchange.own_place = own_place
        exchange.may_be_read = algorithm == 0 and self.may_be_read(collective, outgoing, sends,
                                                                   &choice)
        routed = monotonic_ns() if choice != NULL else 0
        status = self.run_exchange(&exchange, collective, outgoing, sends, incoming, receives,
                                   grown)
        if choice != NULL:
            add_call(choice, monotonic_ns() - routed)
        self.finished(tally, began)
        self.leave(status)
        return exchange.truncated

    cdef bint may_be_read(self, int collective, const Transfer *outgoing, int sends,
                          RouteChoice **choice) noexcept:
        """Whether receivers should read these messages themselves, through the kernel.

        ``choice``: where that is measured, what knows of it; else NULL.
        """
        cdef size_t total = 0
        cdef int i
        choice[0] = NULL
        if self.team.processes == NULL:
            return False
        for i in range(sends):
            total += outgoing[i].nbytes
        if total < self.team.kernel_copy_from[collective]:
            return False
        if collective == COLLECTIVE_SCATTER and self.measures_scatter:
            choice[0] = &self.scatter_routes[route_class(total)]
        elif collective == COLLECTIVE_ALLTOALL and self.measures_alltoall:
            choice[0] = &self.alltoall_routes[route_class(total)]
        return choice[0] == NULL or choice[0].tried == KERNEL_ROUTE

    cdef int exchange_stage(self, uint64_t signature, Transfer *outgoing, int sends,
                            Transfer *incoming, int receives, list grown) except -1:
        """The same as a stage of a call that spans nodes."""
        cdef Exchange exchange
        cdef int status
        self.continues = True
        self.enter()
        begin_call(&self.team, signature, 0)
        exchange.own = exchange.own_place = NULL
        exchange.may_be_read = False
        status = self.run_exchange(&exchange, 0, outgoing, sends, incoming, receives, grown)
        self.leave(status)
        return exchange.truncated

    cdef int run_exchange(self, Exchange *exchange, int collective, Transfer *outgoing, int sends,
                          Transfer *incoming, int receives, list grown) noexcept:
        cdef int status, i
        cdef size_t result = 0
        cdef bint streaming
        exchange.team = &self.team
        exchange.streams = self.streams
        exchange.outgoing = outgoing
        exchange.incoming = incoming
        exchange.sends = sends
        exchange.receives = receives
        for i in range(receives):
            result += incoming[i].room
        if exchange.own != NULL:
            result += exchange.own_place.nbytes
        exchange.direct_from = self.team.direct_from[collective]
        streaming = result >= self.team.streaming_from[collective]
        for i in range(receives):
            incoming[i].cursor.streaming = streaming
        if exchange.own != NULL:
            exchange.own_place.streaming = streaming
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

    # ------------------------------------------------------------------ calls that go to MPI

    def through_mpi(self, collective, start_call, int root=0, int op=NO_OPERATION,
                    int element_type=NO_TYPE, uint64_t nbytes=0):
        """Carry a collective out by MPI's nonblocking form, completed in the one wait function.

        So its signature is published, and poison, signals and timeouts reach it (protocol rule 9).
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
            self.leave_uncompleted()
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

        Every poll asks MPI, and a yield follows it at once: what moves the packets needs a CPU too.
        """
        cdef int status
        cdef int64_t usual = self.team.sleep_after, now
        cdef int spin
        self.team.awaited_rank = -1
        if holds(context):
            return DONE
        self.team.sleep_after = sleep_after
        spin, self.team.spin = self.team.spin, 0
        status = wait_until(&self.team, holds, context)
        self.team.spin = spin
        # MPI was driven; signals and the watch have their turn once a millisecond.
        now = monotonic_ns()
        if now - self.team.attendant_called < ATTEND_OUTSIDE_EVERY:
            self.team.attended = now
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


cdef add_row(list rows, collective, algorithm, path, Tally *tally):
    cdef double seconds = 0
    if tally.calls == 0:
        return
    if tally.timed_calls > 0:
        seconds = tally.timed_ns * 1e-9 / tally.timed_calls * tally.calls
    rows.append({"collective": collective, "algorithm": algorithm, "path": path,
                 "calls": tally.calls, "bytes": tally.nbytes, "seconds": seconds,
                 "direct_bytes": tally.direct_bytes})


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
