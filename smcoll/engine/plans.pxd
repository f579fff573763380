cimport cython
from libc.stdint cimport uint64_t

from smcoll.base.atomics cimport load_relaxed
from smcoll.base.signature cimport COLLECTIVES
from smcoll.coll.pipeline cimport Plan
from smcoll.engine.news cimport News
from smcoll.sync.team cimport Team
from smcoll.sync.trees cimport Tree

cdef enum:
    MAX_CHOICES = 18      # a table's rows (tables.MOST_ROWS), and two more where arrays are shared
    SIZE_CLASSES = 32


cdef extern from *:
    int __builtin_clzll(unsigned long long) noexcept nogil


# By powers of two: class c has the calls of up to 2^c bytes that have more than the class before;
# the last one has all longer ones, too.
cdef inline int size_class(size_t nbytes) noexcept nogil:
    return 0 if nbytes <= 1 else min(64 - __builtin_clzll(nbytes - 1), SIZE_CLASSES - 1)


cdef struct Choice:
    size_t up_to               # largest nbytes this row is for
    Plan plan


@cython.final
cdef class Plans:
    cdef readonly dict decisions
    cdef int size
    cdef size_t segment_size   # bytes
    cdef int segments          # of a bank
    cdef dict trees
    cdef dict ordered          # plans for operations that don't commute
    cdef Choice table[COLLECTIVES][MAX_CHOICES]
    cdef int choices[COLLECTIVES]
    # Of a communicator that learns.
    cdef const uint64_t *told  # rank 0's word; NULL: it does not learn
    cdef Team *team
    cdef uint64_t quiet_until  # in calls before that number the Learner has nothing to do
    cdef uint64_t heeded       # the last word
    cdef News trial            # what it said, where that is one,
    cdef int trial_left        # and how many of its calls this rank has still to enter
    cdef bint follows          # a trial is on, or a class follows another row than the table's
    cdef int differing         # how many classes follow another row than the table's
    cdef Plan *variants[COLLECTIVES]
    cdef int variant_counts[COLLECTIVES]
    cdef int variant_of[COLLECTIVES][SIZE_CLASSES]     # 0: what the table says

    cdef Tree tree(self, int radix)
    cdef Plan plan(self, int collective, decision)
    cdef const Plan *choose_in_order(self, collective, size_t nbytes, bint commutes) except NULL
    cdef learn(self, const uint64_t *told, Team *team, variants, rows)
    cdef void stop_learning(self) noexcept
    cdef int calls_until_settled(self, const News *news) noexcept nogil
    cdef void follow(self, int collective, int size_class, int variant) noexcept nogil
    cdef void trial_is_over(self) noexcept nogil
    cdef void look(self) noexcept nogil
    cdef void heed(self, uint64_t word) noexcept nogil
    cdef bint is_tried_by(self, const Plan *plan) noexcept nogil

    # Inline: part of each call, from other modules. What a call of so many bytes follows: a row of
    # the table (by default of tuning.select.defaults), or what was learned; the functions stand in
    # algorithms.TABLE.
    cdef inline const Plan *choose(self, int collective, size_t nbytes) noexcept nogil:
        cdef const Plan *plan
        if self.told != NULL and (load_relaxed(self.told) != self.heeded or self.follows):
            plan = self.learned(collective, nbytes)
            if plan != NULL:
                return plan
        return self.in_table(collective, nbytes)

    cdef inline const Plan *in_table(self, int collective, size_t nbytes) noexcept nogil:
        cdef int i, last = self.choices[collective] - 1
        for i in range(last):
            if nbytes <= self.table[collective][i].up_to:
                return &self.table[collective][i].plan
        return &self.table[collective][last].plan

    # What rank 0 has told of such calls; NULL: nothing, the table holds. All ranks find the same
    # for the same call: see learning.pyx.
    cdef inline const Plan *learned(self, int collective, size_t nbytes) noexcept nogil:
        cdef uint64_t word = load_relaxed(self.told)
        cdef int in_class = size_class(nbytes), variant
        if word != self.heeded:
            self.heed(word)
        variant = self.variant_of[collective][in_class]
        if (self.trial_left > 0 and collective == self.trial.collective
                and in_class == self.trial.size_class):
            variant = self.trial.variant
        return NULL if variant == 0 else &self.variants[collective][variant - 1]
