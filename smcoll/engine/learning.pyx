"""A communicator finds out while it runs which variant of each class of calls is the fastest.

A class: a collective's calls of up to 2^c bytes and more than half of that. Its calls try variants
(``tuning.exploration`` says which), a trial at a time. Rank 0 alone decides; all others read one
word of its control pages at the beginning of each call, in a line that they look at anyway.

==================  ================================  ============================================
word                stored by                         loaded by
==================  ================================  ============================================
``told_by``         rank 0, relaxed, before it        all ranks, relaxed, when they choose what a
                    enters a synchronising call       call follows; over several nodes when it
                                                      begins, too
``Sample``          its owner, ``call`` last, with    rank 0, acquire, then the entry, then
                    release                           ``call`` once more
==================  ================================  ============================================

**All ranks change at the same call.** Some calls are synchronising: nobody leaves before all have
entered (Barrier, Allreduce, whatever all ranks exchange in flag lines). Rank 0 stores its word in
such a call, number N, before it publishes anything of it, and the word says: for who has been in
N + 1. Who has been in N + 1 has left N, so has seen a flag that rank 0 raised after that store: it
finds the word, or a later one. Who has not been in N + 1 may find the word early, or not: it does
not hold yet. How far ranks run ahead of each other does not matter.

**No word is missed.** Rank 0 stores the next one only after it has left a synchronising call N',
later than N + 1: each rank has looked at the word before it entered N', when it had been in N + 1.
So every synchronising call begins with such a look, whatever it follows
(``Plans.choose`` and ``choose_in_order``).

**A trial ends by itself**, after some calls of its class: the next synchronising call may be far.
Each rank counts them, when it has entered them; all have the same calls, so all count alike. Where
they do not come, rank 0's next word ends the trial.

**What a trial's call took** is the time from the last rank's arrival to the last one's departure,
by the clock that all cores of a node have in common. A rank that comes late does not count. Where
ranks share CPUs, the last one may arrive when the others are done: there it is the CPU time of all
ranks in the call, divided by the CPUs, if that is more. (A rank that waits while nobody else wants
its CPU works, too, for up to a millisecond. That time alone would not tell that ranks wait in the
next call for those that are last in this one.)

**In a communicator over several nodes** each node's first rank decides for its node. What is tried
and counted are the stages in the node; synchronising are the user's calls: a Barrier, or an
Allreduce of some bytes, whose stages all depend on that rank. It tells at the beginning of such a
call. All look at its word when a call has its number and none of its stages is published: so the
word holds from N + 1 on, which who has left N may follow.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from smcoll.base.atomics cimport (
    fence_acquire, fence_release, load_acquire, load_relaxed, monotonic_ns, store_relaxed,
    store_release, thread_cpu_ns,
)
from smcoll.base.signature cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_ALLREDUCE, COLLECTIVE_BARRIER, allgathers_objects,
)
from smcoll.coll.pipeline cimport Plan, fits_lines
from smcoll.coll.stores cimport stores_are_settled
from smcoll.engine.member cimport Member
from smcoll.engine.news cimport pack_news
from smcoll.engine.plans cimport SIZE_CLASSES, Plans, size_class
from smcoll.segment cimport SAMPLES, Sample, samples_of, told_by
from smcoll.sync.team cimport Team

from dataclasses import dataclass

from smcoll.algos import COLLECTIVE_NAMES, COLLECTIVE_NUMBERS
from smcoll.tuning import learned
from smcoll.tuning.exploration import Exploration
from smcoll.tuning.select import decision_for
from smcoll.tuning.variants import to_try

cdef enum:
    FIRST_LOOK = 32            # calls of a class before it is explored
    PATIENCE_WITH_STORES = 128  # at most so many later, where kinds of stores are being compared
    LOOK_AGAIN = 4             # and again after so many times the calls it had
    LOOK_AT_KNOWN = 512        # what an earlier job has found is looked at after so many
    # Calls that rank 0 counts one by one: a communicator's first ones and, while there is work,
    # those behind a synchronising one. Of all others one in so many, on average: a look takes 10
    # to 20 ns where it is the rule, more where it is rare, and a short call at most 1 % longer
    # (docs/learning.md).
    COUNTED = 1000
    LOOKS_APART = 256
    # Calls in which those of a trial must come, and how many times as many the next one has where
    # none has come that is measured.
    PATIENCE = 400
    MORE_PATIENCE = 4

cdef uint64_t NUMBER_BITS = (1 << 24) - 1
cdef uint64_t LONGEST_TIME = (<uint64_t> 1 << 40) - 1


@dataclass(frozen=True)
class Lesson:
    """What was found for one class.

    ``variant``: which it follows (a number; 0: the table's row); ``times``: ns of a call by
    variant, the fastest first; ``calls``: of the class until then; ``tried``: calls that were
    measured, and ``cost``: how many ns they took longer than with the fastest.
    """

    variant: int
    times: dict
    calls: int
    tried: int
    cost: float


cdef inline uint64_t sample_word(uint64_t number, uint64_t ns) noexcept nogil:
    return (number & NUMBER_BITS) << 40 | min(ns, LONGEST_TIME)


@cython.final
cdef class Learner:
    """One rank's part of it."""

    def __cinit__(self, Plans plans not None, kind, inline_sizes):
        self.plans = plans
        self.inline_sizes = inline_sizes
        self.kind = kind
        self.waiting = []
        self.lessons = {}
        self.variants = {}
        self.known = {}

    cdef start(self, Member member, variants, known, int cpus, bint explores):
        """As in ``NodeEngine.learn``."""
        cdef Team *team = &member.team
        cdef int number, in_class
        self.team = team
        self.cpus = cpus
        self.samples = samples_of(&team.layout, team.base, team.rank)
        self.told = told_by(&team.layout, team.base, 0)
        self.leads = team.rank == 0
        if not self.leads or not explores:
            self.count_at = <uint64_t> -1
        self.variants = variants
        self.plans.learn(self.told, team, variants,
                         [(collective, in_class, variant)
                          for collective, in_class, variant, _ in known])
        if not explores:
            return
        for collective in variants:
            number = COLLECTIVE_NUMBERS[collective]
            for in_class in range(1 if collective == "barrier" else SIZE_CLASSES):
                self.classes[number][in_class].look = FIRST_LOOK
        for collective, in_class, _, runner_up in known:
            number = COLLECTIVE_NUMBERS[collective]
            self.known[number, in_class] = runner_up
            self.classes[number][in_class].look = LOOK_AT_KNOWN
        self.random = monotonic_ns()

    # ------------------------------------------------------------------ every rank

    cdef int64_t arrive_on_trial(self, int collective, const Plan *plan,
                                 size_t nbytes) noexcept nogil:
        if (collective != self.plans.trial.collective
                or size_class(nbytes) != self.plans.trial.size_class
                or not self.plans.is_tried_by(plan)):
            return 0
        # The first ones are not measured: memory is touched, rings run dry.
        self.team.tried_in = self.team.number
        self.plans.trial_left -= 1
        if self.plans.trial_left == 0:
            self.plans.trial_is_over()
            if self.is_own_last():
                # Others measure this call until they leave it.
                self.over = self.team.number
        if self.plans.trial_left >= SAMPLES:
            return 0
        if self.team.oversubscribed:
            self.cpu_ns = thread_cpu_ns()
        return monotonic_ns()

    cdef bint is_own_last(self) noexcept nogil:
        """Whether this is rank 0, and the trial the one that it told last: not one that it has
        given up, which goes on until the next word holds."""
        return self.leads and self.plans.trial.after == self.told_after

    cdef void depart(self, int64_t arrived) noexcept nogil:
        """At the end of a call that is measured."""
        cdef int i = SAMPLES - 1 - self.plans.trial_left
        cdef Sample *sample = self.samples + i
        cdef int64_t ns = monotonic_ns() - arrived
        cdef int64_t worked = thread_cpu_ns() - self.cpu_ns if self.team.oversubscribed else 0
        # As in the ring of published calls: no half of one sample for that of another.
        store_relaxed(&sample.call, 0)
        fence_release()
        store_relaxed(&sample.arrived, arrived)
        store_relaxed(&sample.worked, worked)
        store_release(&sample.call, sample_word(self.team.number, ns))
        if self.is_own_last():
            self.numbers[i] = self.team.number
            self.samples_taken = i + 1

    # ------------------------------------------------------------------ rank 0

    cdef bint look_at_call(self, int collective, const Plan *plan, size_t nbytes) noexcept nogil:
        """Count the call, and say whether to `lead`.

        Later, and while nothing can be told, only calls of random numbers are counted, each for all
        in between: so each class has its share, whatever comes in turn with it. (A call that is
        none of these comes here where one did not that does not learn, a Gather for example.)
        """
        cdef ClassOfCalls *known = &self.classes[collective][size_class(nbytes)]
        cdef uint64_t number = self.team.number
        if number < COUNTED or (self.has_work and number - self.synchronised < COUNTED):
            known.calls += 1
            self.count_at = 0
        else:
            if number == self.count_at:
                known.calls += LOOKS_APART
            self.draw_next(number)
        self.at_event = known.calls >= known.look > 0 and (
            known.calls >= known.look + PATIENCE_WITH_STORES
            or stores_are_settled(self.team, collective, nbytes))
        self.may_go_on = (synchronises(self.team, collective, plan, nbytes)
                          and self.may_tell_here())
        return self.at_event or self.may_go_on

    cdef bint may_tell_here(self) noexcept nogil:
        """In a synchronising call: whether all know what was told last, and are done with it."""
        cdef uint64_t number = self.team.number
        cdef bint all_are_done = self.has_work and self.over < self.synchronised
        self.synchronised = number
        if self.has_work:
            self.count_at = 0
        return all_are_done and (self.plans.trial_left == 0
                                 or number - self.told_after >= self.patience)

    cdef int count_stage(self, int collective, size_t nbytes) except -1:
        """Of a call over several nodes: each counts. Beside the network that costs nothing."""
        cdef int in_class = size_class(nbytes)
        cdef ClassOfCalls *known = &self.classes[collective][in_class]
        known.calls += 1
        if self.leads and known.calls >= known.look > 0:
            self.wait_for_turn(collective, in_class)
        return 0

    cdef int lead_stages(self) except -1:
        """`lead`, in a synchronising call over several nodes; none of its stages is published."""
        try:
            if self.leads and self.may_tell_here():
                self.go_on()
        except BaseException:
            self.synchronised = 0      # it may become another call
            raise
        return 0

    cdef void draw_next(self, uint64_t number) noexcept nogil:
        """Which call is counted next, behind this one."""
        if number - self.count_at > COUNTED:
            self.count_at = number     # it was 0: not step by step up to here
        while self.count_at <= number:
            self.random = self.random * 6364136223846793005ULL + 1442695040888963407ULL
            self.count_at += 1 + (self.random >> 33) % <uint64_t> (2 * LOOKS_APART - 1)

    cdef int lead(self, int collective, size_t nbytes) except -1:
        """What `count` found to be due. If it raises, the call is to be left as if never begun."""
        try:
            if self.at_event:
                self.wait_for_turn(collective, size_class(nbytes))
            if self.may_go_on:
                self.go_on()
        except BaseException:
            self.synchronised = 0      # it may become another call
            raise
        return 0

    cdef wait_for_turn(self, int collective, int in_class):
        self.classes[collective][in_class].look = 0
        name = COLLECTIVE_NAMES[collective]
        candidates = to_try(name, self.variants[name], in_class, self.team.size,
                            self.plans.decisions[name], self.inline_sizes)
        if candidates:
            self.waiting.append((collective, in_class, candidates))
            self.has_work = True
            self.count_at = 0

    def explain(self, collective, size_t nbytes):
        """As in ``NodeEngine.what_is_learned``."""
        cdef int in_class = size_class(nbytes)
        cdef int variant = self.plans.variant_of[<int> COLLECTIVE_NUMBERS[collective]][in_class]
        if self.plans.told == NULL:
            return None, None
        row = self.variants[collective][variant - 1] if variant > 0 else None
        lesson = self.lessons.get((collective, in_class))
        if lesson is not None:
            times = self.times_in_words(collective, in_class, lesson)
            return row, f"learned in this job: {times}, after {lesson.calls} calls"
        return row, None if row is None else (
            "learned by another rank in this job, or in an earlier one")

    def times_in_words(self, collective, in_class, lesson):
        """The fastest variant of each algorithm."""
        usual = decision_for(self.plans.decisions, collective, 1 << in_class)
        times = {}
        for number, ns in lesson.times.items():
            row = self.variants[collective][number - 1] if number > 0 else usual
            times.setdefault(row.algorithm, f"{row.algorithm} {ns / 1000:.3g} us")
        return ", ".join(times.values())

    def lines(self):
        """What was found and what that cost, a line for each class."""
        return [f"{collective} of up to {1 << in_class} bytes: "
                f"{self.times_in_words(collective, in_class, lesson)}; {lesson.tried} calls tried, "
                f"{lesson.cost / 1000:.0f} us lost"
                for (collective, in_class), lesson in self.lessons.items()]

    def forget(self):
        """In a forked child: what its parent found is its parent's."""
        self.lessons = {}

    def keep(self):
        """For later jobs."""
        if not self.lessons:
            return
        learned.remember(self.kind, self.variants, self.lessons)
        self.lessons = {}

    cdef go_on(self):
        """All know what was told last, and where that was a trial, have left its calls."""
        try:
            self.explore()
        except BaseException:
            self.exploration = None    # a signal's: this class is given up
            raise
        finally:
            self.has_work = (self.exploration is not None or len(self.waiting) > 0
                             or self.plans.trial_left > 0)

    cdef explore(self):
        if self.on_trial:
            self.on_trial = False
            if self.samples_taken == 0:
                self.patience *= MORE_PATIENCE
            self.exploration.record(self.times_of_trial())
        while self.exploration is not None or self.waiting:
            if self.exploration is None:
                self.begin_exploration()
            variant = self.exploration.next()
            if variant is not None:
                self.samples_taken = 0
                self.on_trial = self.tell(True, variant)
                return
            if self.end_exploration():
                return
        if self.plans.trial_left > 0:
            # Given up, but no word has ended it.
            self.tell(False, self.plans.variant_of[self.collective][self.size_class])

    cdef bint tell(self, bint is_trial, int variant):
        """Say what holds after the next call; False: the communicator was freed meanwhile."""
        # This call is a synchronising one, and nothing of it is published.
        cdef uint64_t after = self.team.number + 1
        if self.plans.told == NULL:
            return False
        self.over = after
        self.told_after = after
        store_relaxed(self.told, pack_news(after, is_trial, self.collective, self.size_class,
                                           variant))
        return True

    cdef begin_exploration(self):
        self.collective, self.size_class, candidates = self.waiting.pop(0)
        cdef int current = self.plans.variant_of[self.collective][self.size_class]
        self.explored = &self.classes[self.collective][self.size_class]
        self.patience = PATIENCE
        runner_up = self.known.get((self.collective, self.size_class))
        if runner_up == current:
            runner_up = None
        self.exploration = Exploration(candidates, current,
                                       None if runner_up is None else (runner_up,))

    cdef bint end_exploration(self):
        """Keep the best variant; whether that had to be told."""
        cdef int current = self.plans.variant_of[self.collective][self.size_class]
        cdef uint64_t calls = self.explored.calls
        exploration, self.exploration = self.exploration, None
        cdef int best = exploration.best()
        self.explored.look = LOOK_AGAIN * calls
        ranking = exploration.ranking()
        if exploration.given_up or len(ranking) < 2:
            return False           # nothing to compare the one in use with
        self.known[self.collective, self.size_class] = next(
            (number for number in ranking if number != best), best)
        self.lessons[COLLECTIVE_NAMES[self.collective], self.size_class] = Lesson(
            best, {number: exploration.time(number) for number in ranking}, calls,
            sum(measured for _, _, measured in exploration.trials), exploration.cost())
        return best != current and self.tell(False, best)

    cdef list times_of_trial(self):
        """ns of each measured call of the last trial."""
        times = [self.time_of(i) for i in range(self.samples_taken)]
        return [ns for ns in times if ns >= 0]

    cdef int64_t time_of(self, int sample):
        """From the last arrival to the last departure; the CPU time divided by the CPUs if that is
        more; -1 where the ranks have different calls."""
        cdef uint64_t call, arrived, worked, last_arrival = 0, last_departure = 0, work = 0
        cdef Sample *one
        cdef int rank
        if self.plans.told == NULL:
            return -1              # freed by a signal handler
        for rank in range(self.team.size):
            one = samples_of(&self.team.layout, self.team.base, rank) + sample
            call = load_acquire(&one.call)
            arrived = load_relaxed(&one.arrived)
            worked = load_relaxed(&one.worked)
            fence_acquire()
            if (call >> 40 != self.numbers[sample] & NUMBER_BITS or call == 0
                    or load_acquire(&one.call) != call):
                return -1
            last_arrival = max(last_arrival, arrived)
            last_departure = max(last_departure, arrived + (call & LONGEST_TIME))
            work += worked
        return min(max(last_departure - last_arrival, work // <uint64_t> self.cpus), LONGEST_TIME)


cdef bint synchronises(const Team *team, int collective, const Plan *plan,
                       size_t nbytes) noexcept nogil:
    """Whether no rank leaves such a call before all have entered it."""
    if collective == COLLECTIVE_BARRIER:
        return True
    if collective == COLLECTIVE_ALLREDUCE:
        return nbytes > 0
    if collective == COLLECTIVE_ALLGATHER or allgathers_objects(collective):
        # In the data regions nobody waits for an empty block.
        return fits_lines(team, plan.functions, nbytes)
    return False
