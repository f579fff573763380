from libc.stdint cimport uint64_t


# What a call was, as ranks of different nodes compare it.
cdef struct CallRecord:
    uint64_t number, signature, total
    uint64_t counted               # the number as users count: without calls of ours
    uint64_t history               # a hash of the calls before


cdef inline bint is_same_call(const CallRecord *ours, const CallRecord *theirs) noexcept nogil:
    return (ours.number == theirs.number and ours.signature == theirs.signature
            and ours.total == theirs.total)


cdef enum:
    REMEMBERED = 16                # calls of this rank, the last ones
    NOTICE_TAGS = 2                  # of a communicator: alarms, inquiries


cdef class Notices:
    cdef object comm               # hidden; ranks as in the communicator that spans the nodes
    cdef int tag                   # the first of NOTICE_TAGS
    cdef object placement
    cdef readonly object leaders, unwatched
    cdef object alarm              # the receive of one
    cdef bytearray alarm_text
    cdef dict heard                # the alarm that concerns this rank first; None: none yet
    cdef bint gave_up              # this rank told the others so, which happens once
    cdef CallRecord call
    cdef CallRecord calls[REMEMBERED]
    cdef uint64_t asked_in         # the call in which this rank last asked
    cdef double ask_again, asking_pause
    cdef list told                 # what MPI may still be sending
    cdef object status             # of what came
    cdef int owner_process
    cdef readonly int asked        # times

    cdef void begin(self, uint64_t number, uint64_t counted, uint64_t signature, uint64_t total)
    cdef int check_alarm(self, double seconds) except -1
    cdef hear(self, text)
    cdef int probe_for_alarms(self) except -1
    cdef int inquire(self) except -1
    cdef int take_in(self) except -1
    cdef int compare_calls(self, int peer, list calls) except -1
    cdef disagreement(self, int peer, const CallRecord *theirs)
    cdef int check_ended(self) except -1
    cdef int check_leaders(self) except -1
    cdef int check_death(self, error, int peer) except -1
    cdef int blame(self, int rank, what, bint ended=*, uint64_t since=*) except -1
