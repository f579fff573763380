"""The fallback: a collective that MPI carries out, waited for like one in shared memory."""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from smcoll.barrier cimport publish_call
from smcoll.base.atomics cimport monotonic_ns
from smcoll.base.signature cimport NO_ALGORITHM, pack_signature
from smcoll.engine.call cimport CallProtocol
from smcoll.engine.statistics cimport Tally, finished
from smcoll.sync.team cimport DONE

from mpi4py import MPI

cdef int64_t FOREVER = (<int64_t> 1 << 62)


@cython.final
cdef class Fallback:
    """Nonblocking collectives of MPI, completed in the one wait function.

    So their signatures are published, and poison, signals and timeouts reach them.
    """

    def __cinit__(self, CallProtocol protocol not None):
        self.protocol = protocol
        self.unfinished = []

    cdef carry_out(self, start_call, int collective, int root, int op, int element_type,
                   uint64_t nbytes, Tally *tally):
        """``start_call()`` returns the request."""
        cdef CallProtocol protocol = self.protocol
        cdef int64_t start
        cdef int status
        protocol.enter(True)
        start = monotonic_ns()
        tally.calls += 1
        tally.nbytes += nbytes
        # What MPI still refuses here (a truncation by this rank itself) the peers carry out: the
        # call has its number.
        publish_call(protocol.team,
                     pack_signature(collective, op, element_type, NO_ALGORITHM, root), nbytes)
        try:
            request = start_call()
        except BaseException:
            protocol.failures.leave_uncompleted()
            protocol.turn_away()
            raise
        completion = _Completion(request)
        # Not slept through: a long message may need MPI all the time.
        status = protocol.wait_outside(completed, <void *> completion, FOREVER)
        finished(tally, start, 0)
        if status != DONE:
            # MPI may still write into the buffers, which `start_call` keeps alive.
            self.unfinished.append((request, start_call))
        protocol.leave(status)
        if completion.error is not None:
            raise completion.error


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
