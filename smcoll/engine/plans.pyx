"""Which algorithm a call follows: a communicator's trees and plans, made once from decisions."""

cimport cython
from smcoll.coll.pipeline cimport Plan
from smcoll.sync.trees cimport Tree

from smcoll.algos import COLLECTIVE_NUMBERS
from smcoll.tuning.select import in_rank_order


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
        plan.fan_in = &self.tree(decision.fan_in).view
        plan.fan_out = &self.tree(decision.fan_out).view
        plan.arity = decision.arity
        plan.section_bytes = min(decision.section_bytes, self.segment_size)
        plan.segments = min(decision.segments, self.segments)
        plan.pipelined = decision.pipelined
        return plan

    def use(self, decisions):
        """Decide so from now on: ``{collective: [Decision, ...]}``, ascending ``up_to``.

        Between two calls, alike on all ranks. Collectives that are not in it keep their rows.
        """
        cdef int number, i
        for collective, rows in decisions.items():
            if len(rows) > MAX_CHOICES:
                raise ValueError(f"more than {MAX_CHOICES} rows for {collective}")
        self.decisions = self.decisions | decisions
        self.ordered.clear()
        for collective, rows in decisions.items():
            number = COLLECTIVE_NUMBERS[collective]
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

    cdef const Plan *choose_in_order(self, collective, size_t nbytes, bint commutes) except NULL:
        """What an operation follows that may not commute: operands in rank order then."""
        cdef _KeptPlan kept
        number = COLLECTIVE_NUMBERS[collective]
        if commutes:
            return self.choose(number, nbytes)
        row = in_rank_order(self.decisions, collective, nbytes)
        key = collective, row.up_to
        kept = self.ordered.get(key)
        if kept is None:
            kept = _KeptPlan()
            kept.plan = self.plan(number, row)
            self.ordered[key] = kept
        return &kept.plan


cdef class _KeptPlan:
    """A plan for operations that don't commute, kept for the next such call."""

    cdef Plan plan
