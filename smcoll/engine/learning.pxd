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
    uint64_t calls             # about: most calls are not looked at
    uint64_t look              # it is explored at so many; 0: it is, or never


@cython.final
cdef class Learner:
    cdef Team *team
    cdef Plans plans
    cdef Sample *samples       # this rank's
    cdef int cpus              # that the ranks may use
    cdef int64_t cpu_ns        # this thread's CPU time when it arrived, where ranks share CPUs
    # Rank 0 alone.
    cdef readonly bint leads
    cdef uint64_t count_at     # number of the user's call that is looked at next
    cdef uint64_t random
    cdef bint has_work         # a class is being explored, or waits for that
    cdef bint on_trial
    cdef bint at_event, may_go_on  # what `count` has found
    cdef uint64_t *told
    cdef uint64_t synchronised     # number of the last synchronising call
    cdef uint64_t over         # when all have been in a later call, all know what was told last
    cdef uint64_t told_after   # News.after of what was told last
    cdef uint64_t patience     # how many calls later a trial ends without enough calls of its own
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

    cdef start(self, Member member, variants, known, int cpus, bint explores)
    cdef bint look_at_call(self, int collective, const Plan *plan, size_t nbytes) noexcept nogil
    cdef bint may_tell_here(self) noexcept nogil
    cdef int count_stage(self, int collective, size_t nbytes) except -1
    cdef int lead_stages(self) except -1
    cdef int lead(self, int collective, size_t nbytes) except -1
    cdef int64_t arrive_on_trial(self, int collective, const Plan *plan,
                                 size_t nbytes) noexcept nogil
    cdef bint is_own_last(self) noexcept nogil
    cdef void depart(self, int64_t arrived) noexcept nogil
    cdef void draw_next(self, uint64_t number) noexcept nogil
    cdef wait_for_turn(self, int collective, int in_class)
    cdef go_on(self)
    cdef explore(self)
    cdef list times_of_trial(self)
    cdef int64_t time_of(self, int sample)
    cdef bint tell(self, bint is_trial, int variant)
    cdef begin_exploration(self)
    cdef bint end_exploration(self)

    # In a call of the user's that is not published yet: whether rank 0 is to `lead`.
    cdef inline bint count(self, int collective, const Plan *plan, size_t nbytes) noexcept nogil:
        if self.team.number < self.count_at:
            return False
        return self.look_at_call(collective, plan, nbytes)

    # Called before a call publishes anything. Returns the time (ns), 0 where it is not measured.
    cdef inline int64_t arrive(self, int collective, const Plan *plan,
                               size_t nbytes) noexcept nogil:
        if self.plans.told == NULL:
            return 0               # freed by a signal handler
        if self.plans.trial_left == 0:
            self.plans.quiet_until = self.count_at
            return 0
        return self.arrive_on_trial(collective, plan, nbytes)
