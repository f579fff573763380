"""Which algorithm a call follows: a communicator's trees and plans, made once from decisions."""

cimport cython
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from smcoll.algos cimport functions_of
from smcoll.base.atomics cimport load_relaxed, load_relaxed_int
from smcoll.base.signature cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_ALLREDUCE, COLLECTIVE_REDUCE_SCATTER, COLLECTIVES,
)
from smcoll.coll.pipeline cimport Plan, fits_lines
from smcoll.coll.stores cimport survey_again
from smcoll.engine.news cimport News, after_in, unpack_news
from smcoll.segment cimport SAMPLES
from smcoll.sync.team cimport Team
from smcoll.sync.trees cimport Tree

from smcoll.algos import COLLECTIVE_NUMBERS
from smcoll.tuning.select import in_rank_order

cdef enum:
    # Calls of a trial. More of them would leave too few of a class's first 300 for other trials.
    LEAST_UNMEASURED = 2
    MOST_UNMEASURED = 8


@cython.final
cdef class Plans:
    """What each call of one communicator is to follow."""

    def __cinit__(self, int size, size_t segment_size, int segments):
        """``size``: ranks; the other two: what a plan may use of a bank at most."""
        self.size = size
        self.segment_size = segment_size
        self.segments = segments
        self.decisions = {}
        self.trees = {}
        self.ordered = {}
        self.stop_learning()

    cdef Tree tree(self, int radix):
        """The tree of this radix: made once, kept as long as the communicator."""
        cdef Tree tree = self.trees.get(radix)
        if tree is None:
            tree = Tree(self.size, radix)
            self.trees[radix] = tree
        return tree

    cdef Plan plan(self, int collective, decision):
        cdef Plan plan
        plan.algorithm = decision.number
        plan.functions = functions_of(collective, plan.algorithm)
        plan.fan_in = &self.tree(decision.fan_in).view
        plan.fan_out = &self.tree(decision.fan_out).view
        plan.arity = decision.arity
        plan.section_bytes = min(decision.section_bytes, self.segment_size)
        plan.segments = min(decision.segments, self.segments)
        plan.pipelined = decision.pipelined
        return plan

    def use(self, decisions):
        """Decide so from now on: ``{collective: [Decision, ...]}``, ascending ``up_to``.

        Between two calls, alike on all ranks. Collectives that are not in it keep their rows. Who
        says so decides from now on: nothing is learned any more.
        """
        cdef int number, i
        for collective, rows in decisions.items():
            if len(rows) > MAX_CHOICES:
                raise ValueError(f"more than {MAX_CHOICES} rows for {collective}")
        self.stop_learning()
        self.decisions = self.decisions | decisions
        self.ordered.clear()
        for collective, rows in decisions.items():
            number = COLLECTIVE_NUMBERS[collective]
            for i, row in enumerate(rows):
                self.table[number][i].up_to = row.up_to
                self.table[number][i].plan = self.plan(number, row)
            self.choices[number] = len(rows)

    cdef const Plan *choose_in_order(self, collective, size_t nbytes, bint commutes) except NULL:
        """What an operation without a kernel follows, which may not commute: operands in rank
        order then. Nothing that was learned: that is about kernels, and large elements may not fit
        other sections.
        """
        cdef _KeptPlan kept
        number = COLLECTIVE_NUMBERS[collective]
        # Such calls may be synchronising, too: no word may be missed (learning.pyx).
        self.look()
        if commutes:
            return self.in_table(number, nbytes)
        row = in_rank_order(self.decisions, collective, nbytes)
        key = collective, row.up_to
        kept = self.ordered.get(key)
        if kept is None:
            kept = _KeptPlan()
            kept.plan = self.plan(number, row)
            self.ordered[key] = kept
        return &kept.plan

    # ------------------------------------------------------------------ what is learned

    cdef learn(self, const uint64_t *told, Team *team, variants, rows):
        """Heed rank 0's word from now on. Between two calls, alike on all ranks.

        ``variants``: ``{collective: [Decision, ...]}``, which its numbers stand for; ``rows``:
        ``[(collective, class, variant), ...]`` that hold from the beginning.
        """
        cdef int number, i
        for collective, decisions in variants.items():
            number = COLLECTIVE_NUMBERS[collective]
            self.variants[number] = <Plan *> calloc(len(decisions), sizeof(Plan))
            if self.variants[number] == NULL:
                raise MemoryError
            for i, decision in enumerate(decisions):
                self.variants[number][i] = self.plan(number, decision)
            self.variant_counts[number] = len(decisions)
        for collective, class_number, variant in rows:
            self.follow(COLLECTIVE_NUMBERS[collective], class_number, variant)
        self.team = team
        self.told = told
        self.quiet_until = 0

    cdef void stop_learning(self) noexcept:
        self.told = NULL
        self.quiet_until = <uint64_t> -1

    cdef void look(self) noexcept nogil:
        """Heed what rank 0 has told."""
        if self.told != NULL:
            self.heed(load_relaxed(self.told))

    cdef void heed(self, uint64_t word) noexcept nogil:
        """Take over what rank 0 has told, if it holds already."""
        cdef News news
        # In a call the number may be taken back: who asks then, a signal handler, is refused.
        if (word == self.heeded or after_in(word) > self.team.number
                or load_relaxed_int(&self.team.status.busy)):
            return
        self.heeded = word
        news = unpack_news(word)
        if not news.collective < COLLECTIVES or news.variant > self.variant_counts[news.collective]:
            return                 # damaged (protocol rule 10)
        self.trial = news
        self.trial_left = self.calls_until_settled(&news) + SAMPLES if news.is_trial else 0
        self.quiet_until = 0
        if news.is_trial:
            self.follows = True
        else:
            self.follow(news.collective, news.size_class, news.variant)

    cdef int calls_until_settled(self, const News *news) noexcept nogil:
        """How many calls of a trial are not measured; the same on all ranks.

        The first ones touch memory, and rings run dry. Two ranks that both store change data
        regions (`coll.pipeline`): what the variant before has left in a place costs until both have
        stored there.
        """
        cdef size_t nbytes = <size_t> 1 << news.size_class
        cdef const Plan *plan
        cdef size_t calls
        if self.team.size != 2 or news.collective not in (
                COLLECTIVE_ALLREDUCE, COLLECTIVE_ALLGATHER, COLLECTIVE_REDUCE_SCATTER):
            return LEAST_UNMEASURED
        plan = self.in_table(news.collective, nbytes)
        if news.variant > 0:
            plan = &self.variants[news.collective][news.variant - 1]
        if fits_lines(self.team, plan.functions, nbytes) or plan.section_bytes == 0:
            return LEAST_UNMEASURED
        calls = 2 * self.team.layout.banks * plan.segments * plan.section_bytes // nbytes
        if calls < LEAST_UNMEASURED:
            return LEAST_UNMEASURED
        return MOST_UNMEASURED if calls > MOST_UNMEASURED else calls

    cdef void follow(self, int collective, int size_class, int variant) noexcept nogil:
        """From now on, for good."""
        cdef int *current = &self.variant_of[collective][size_class]
        if self.team != NULL and current[0] != variant:
            survey_again(self.team, <size_t> 1 << size_class)
        self.differing += (variant != 0) - (current[0] != 0)
        current[0] = variant
        self.follows = self.differing > 0

    cdef void trial_is_over(self) noexcept nogil:
        self.follows = self.differing > 0

    cdef bint is_tried_by(self, const Plan *plan) noexcept nogil:
        """Whether a call of the trial's class that follows this plan follows the trial."""
        return (self.trial.variant == 0
                or plan == &self.variants[self.trial.collective][self.trial.variant - 1])

    def __dealloc__(self):
        cdef int collective
        for collective in range(COLLECTIVES):
            free(self.variants[collective])


cdef class _KeptPlan:
    """A plan for operations that don't commute, kept for the next such call."""

    cdef Plan plan
