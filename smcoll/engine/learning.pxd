cimport cython
from libc.stdint cimport int64_t, uint64_t

from smcoll.base.signature cimport COLLECTIVES
from smcoll.coll.pipeline cimport Plan
from smcoll.engine.member cimport Member
from smcoll.engine.plans cimport SIZE_CLASSES, Plans
from smcoll.segment cimport SAMPLES, Sample
from smcoll.sync.team cimport Team


# What rank 0 knows of the calls of one class.
cdef struct ClassOfCalls:
    uint64_t calls
    uint64_t event             # something is due at so many: 0: never,
    uint64_t look              # an exploration at so many, else a mark from which calls are counted
    uint64_t marked_call, marked_number    # of the class's calls, and of all the user's
    uint64_t spacing           # of the user's calls from one of the class to the next, about


@cython.final
cdef class Learner:
    cdef Team *team
    cdef Plans plans
    cdef Sample *samples       # this rank's
    cdef uint64_t measured     # the trial (News.after) that is measured,
    cdef uint64_t calls_in_trial   # and how many of its calls there were
    # Rank 0 alone.
    cdef readonly bint leads
    cdef bint has_work         # a class is being explored, or waits for that
    cdef bint on_trial
    cdef bint at_event, may_go_on  # what `count` has found
    cdef uint64_t *told
    cdef uint64_t synchronised     # number of the last synchronising call
    cdef uint64_t over         # when all have been in a later call, what was told last is over
    cdef ClassOfCalls classes[COLLECTIVES][SIZE_CLASSES]
    cdef uint64_t numbers[SAMPLES]     # of the trial's measured calls
    cdef int samples_taken
    cdef list waiting          # classes to explore
    cdef object exploration    # of the class ...
    cdef int collective, size_class
    cdef ClassOfCalls *explored    # of that class
    cdef readonly dict lessons     # {(collective, class): Lesson}
    cdef dict variants, known, inline_sizes
    cdef object kind           # of communicator: tuning.learned.Kind

    cdef start(self, Member member, variants, known, bint explores)
    cdef bint count(self, int collective, const Plan *plan, size_t nbytes) noexcept nogil
    cdef int lead(self, int collective, size_t nbytes) except -1
    cdef int64_t arrive_on_trial(self, int collective, const Plan *plan,
                                 size_t nbytes) noexcept nogil
    cdef void depart(self, int64_t arrived) noexcept nogil
    cdef look_at(self, ClassOfCalls *known, uint64_t calls)
    cdef int mark_or_look(self, int collective, int in_class) except -1
    cdef go_on(self)
    cdef explore(self)
    cdef list times_of_trial(self)
    cdef int64_t time_of(self, int sample)
    cdef bint tell(self, int window, int variant)
    cdef int window(self)
    cdef begin_exploration(self)
    cdef bint end_exploration(self)

    # In a call, before it publishes anything: when that was, 0 where it is not measured.
    cdef inline int64_t arrive(self, int collective, const Plan *plan,
                               size_t nbytes) noexcept nogil:
        if self.team.number > self.plans.trial.until:
            return 0
        return self.arrive_on_trial(collective, plan, nbytes)
