"""Which algorithm a call follows: a communicator's trees and plans, made once from decisions."""

from libc.stdlib cimport free, malloc

from smcoll.algos cimport is_inline
from smcoll.base.signature cimport COLLECTIVE_BCAST, COLLECTIVE_OBJECT_BCAST
from smcoll.coll.pipeline cimport Plan
from smcoll.engine.reservation cimport MemberWithMemory
from smcoll.sync.trees cimport Tree

from smcoll.algos import COLLECTIVE_NUMBERS
from smcoll.tuning.select import in_rank_order


cdef class MemberWithPlans(MemberWithMemory):
    """A member that knows what each call is to follow."""

    def __cinit__(self):
        self.trees = {}
        self.plans = {}
        self.scratch = <int *> malloc(2 * self.team.size * sizeof(int))
        if self.scratch == NULL:
            raise MemoryError()
        self.team.scratch = self.scratch

    def __dealloc__(self):
        free(self.scratch)

    cdef Tree tree(self, int radix):
        """The tree of this radix: made once, kept as long as the communicator."""
        cdef Tree tree = self.trees.get(radix)
        if tree is None:
            tree = Tree(self.team.size, radix)
            self.trees[radix] = tree
        return tree

    cdef Plan plan(self, int collective, decision):
        cdef Plan plan
        plan.algorithm = decision.number
        plan.fan_in = &self.tree(decision.fan_in).view
        plan.fan_out = &self.tree(decision.fan_out).view
        plan.arity = decision.arity
        plan.section_bytes = min(decision.section_bytes, self.team.layout.segment_size)
        plan.segments = min(decision.segments, self.team.layout.segments)
        plan.pipelined = decision.pipelined
        return plan

    def write_around_caches(self, sizes):
        """Results of so many bytes, by collective, with non-temporal stores."""
        for collective, nbytes in sizes.items():
            self.team.streaming_from[<int> COLLECTIVE_NUMBERS[collective]] = nbytes
        self.team.streaming_from[COLLECTIVE_OBJECT_BCAST] = (
            self.team.streaming_from[COLLECTIVE_BCAST])

    def use_core_cache(self, size_t nbytes):
        """How much a rank's own cache holds: the same on all ranks, between two calls. 0: none has
        a core to itself."""
        self.team.layout.core_cache = nbytes

    def around_caches_from(self, collective):
        """From how many bytes on a collective's result is written so."""
        return self.team.streaming_from[<int> COLLECTIVE_NUMBERS[collective]]

    def use(self, decisions):
        """Decide so from now on: ``{collective: [Decision, ...]}``, ascending ``up_to``.

        Between two calls, alike on all ranks. Collectives that are not in it keep their rows.
        """
        cdef int number, i
        self.decisions = (self.decisions or {}) | decisions
        self.plans.clear()
        for collective, rows in decisions.items():
            number = COLLECTIVE_NUMBERS[collective]
            if len(rows) > MAX_CHOICES:
                raise ValueError(f"more than {MAX_CHOICES} rows for {collective}")
            for i, row in enumerate(rows):
                self.table[number][i].up_to = row.up_to
                self.table[number][i].plan = self.plan(number, row)
            self.choices[number] = len(rows)

    cdef const Plan *choose(self, int collective, size_t nbytes) noexcept nogil:
        cdef int i, last = self.choices[collective] - 1
        for i in range(last):
            if nbytes <= self.table[collective][i].up_to:
                return &self.table[collective][i].plan
        return &self.table[collective][last].plan

    cdef bint holds(self, const Plan *plan, size_t element) noexcept:
        """Whether each rank's slice of half a section, as algorithms cut it, holds an element."""
        return 2 * element * <size_t> self.team.size <= plan.section_bytes

    cdef const Plan *ordered_plan(self, collective, size_t nbytes, bint commutes) except NULL:
        """What an operation follows that may not commute: operands in rank order then."""
        cdef _KeptPlan kept
        number = COLLECTIVE_NUMBERS[collective]
        if commutes:
            return self.choose(number, nbytes)
        row = in_rank_order(self.decisions, collective, nbytes)
        key = collective, row.up_to
        kept = self.plans.get(key)
        if kept is None:
            kept = _KeptPlan()
            kept.plan = self.plan(number, row)
            self.plans[key] = kept
        return &kept.plan

    def is_inline(self, collective, int algorithm, size_t nbytes):
        """Whether the data of such a call travel in the flag lines."""
        return is_inline(&self.team, COLLECTIVE_NUMBERS[collective], algorithm, nbytes)


cdef class _KeptPlan:
    """A plan for operations that don't commute, kept for the next such call."""

    cdef Plan plan
