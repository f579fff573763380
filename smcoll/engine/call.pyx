"""The protocol of a call on one node: enter, publish, leave.

What is wrong before anything is published stays on this rank; what fails later is told to all.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from smcoll.barrier cimport begin_call
from smcoll.base.atomics cimport monotonic_ns, store_release, try_lock, unlock
from smcoll.engine.failure cimport FailureDetector
from smcoll.engine.member cimport Member
from smcoll.sync.team cimport DONE, POISON_EXCEPTION, PyThreadState
from smcoll.sync.waiting cimport attend_between_calls, condition, wait_until

from mpi4py import MPI

from smcoll.errors import Error


cdef extern from "Python.h":
    PyThreadState *PyEval_SaveThread() noexcept nogil
    void PyEval_RestoreThread(PyThreadState *state) noexcept nogil


cdef enum:
    # Why a call can't even begin; beside DONE and the FAILED codes.
    UNUSABLE = 11
    BUSY = 12

cdef enum:
    ATTEND_OUTSIDE_EVERY = 1_000_000
    # Above this many bytes a call gives the GIL up at its start; below, when it first yields.
    RELEASE_GIL_ABOVE = 16384

IN_ANOTHER_CALL = ("this communicator is in another collective already (a second thread, or "
                   "a signal handler that calls it): one call at a time")


@cython.final
cdef class CallProtocol:
    """How one rank enters and leaves the calls of a segment."""

    def __cinit__(self, Member member not None, FailureDetector failures not None):
        self.member = member
        self.failures = failures
        self.team = &member.team

    cdef int enter(self, bint holds_gil) except -1 nogil:
        """Before a call publishes anything: what is wrong here stays here (protocol rule 13).

        ``holds_gil``: this thread has it, and waits may give it up.
        """
        cdef int status = self.try_to_enter()
        if status != DONE:
            with gil:
                self.explain_refusal(status)
        self.team.holds_gil = holds_gil
        return 0

    cdef int try_to_enter(self) noexcept nogil:
        cdef int status
        if self.member.unusable:
            return UNUSABLE
        if not try_lock(&self.team.status.busy):
            return BUSY
        self.team.thread_state = NULL
        if self.is_later_stage:
            # A signal's exception here would look local, but the peers are in this stage already.
            self.is_later_stage = False
            return DONE
        status = attend_between_calls(self.team)
        if status == DONE:
            self.team.number += 1
        else:
            unlock(&self.team.status.busy)
        return status

    cdef int explain_refusal(self, int status) except -1:
        if status == UNUSABLE:
            self.failures.refuse()
        if status == BUSY:
            raise Error(IN_ANOTHER_CALL)
        raise self.member.attendant.take_failure()

    cdef void turn_away(self) noexcept:
        """Leave before anything was published: an error of this rank alone."""
        if self.member.closed:
            # By a signal handler, which left the unmapping to this call.
            self.member.mapping.close()
        else:
            unlock(&self.team.status.busy)

    cdef void publish(self, uint64_t signature, uint64_t nbytes, size_t moved) noexcept nogil:
        """Publish a call that was entered. One that moves much gives the GIL up now."""
        begin_call(self.team, signature, nbytes)
        if moved > RELEASE_GIL_ABOVE and self.team.holds_gil:
            self.team.thread_state = PyEval_SaveThread()

    cdef int leave(self, int status) except -1 nogil:
        """After it: raises why the call failed. The GIL is as it was on entry."""
        self.take_gil_back()
        if self.member.closed:
            with gil:
                return self.leave_for_good(status)
        unlock(&self.team.status.busy)
        if status != DONE:
            with gil:
                self.failures.fail(status)
        return 0

    cdef int leave_for_good(self, int status) except -1:
        # A signal handler or another thread freed the communicator during this call.
        error = self.member.attendant.take_failure()
        self.member.mapping.close()
        if status != DONE:
            raise error or MPI.Exception(MPI.ERR_COMM)
        return 0

    cdef void take_gil_back(self) noexcept nogil:
        # A wait may have given it up: nothing of Python may be touched before this.
        if self.team.thread_state != NULL:
            PyEval_RestoreThread(self.team.thread_state)
            self.team.thread_state = NULL

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
        status = wait_until(self.team, holds, context)
        self.team.spin = spin
        # MPI was driven; signals and the watch have their turn once a millisecond.
        now = monotonic_ns()
        if now - self.team.attendant_called < ATTEND_OUTSIDE_EVERY:
            self.team.attended = now
        self.team.sleep_after = usual
        self.take_gil_back()
        return status

    def close(self):
        """Say that this rank left, and unmap. Local; once, and in a forked child, too."""
        mapping = self.member.mapping
        is_ours, reserved = mapping.is_ours(), mapping.bytes_reserved
        self.member.closed = self.member.unusable = True
        if is_ours:
            store_release(&self.team.status.left, 1)
            in_a_call = not try_lock(&self.team.status.busy)
            if in_a_call or (self.failures.left_a_call()
                             and self.failures.failure is None):
                # Before anything that may give the GIL up: that call ends, and its program may
                # change arrays that others still read.
                self.failures.poison(POISON_EXCEPTION, self.team.rank, self.failures.user_call())
            self.member.budget.give_back(reserved)
            if in_a_call:
                # Of another thread, or of the code that a signal handler interrupted: it unmaps.
                return
        mapping.close()
