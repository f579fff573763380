"""What each algorithm of smcoll's costs: LHS's terms, and those that direct access does not have.

Added to LHS: copying into the data regions and out of them, entering a call (``call``), flags and
banks of each phase (``step``), lines taken back from readers (``rewrite``) and from memory
(``evicted``), sections that follow each other through a pipeline, small messages in the flags' own
lines, and turns of the run queue where ranks outnumber cores.

One function for each algorithm gives the ``Work`` of one section. ``machine`` says which level
joins which ranks; ``plan`` is what a row of a decision table says. Sizes as in `smcoll compare`:
bytes of the vector, or of the block for one rank in (all)gather, scatter, alltoall and
reduce_scatter.
"""

from smcoll.tuning.model.costs import allreduce, blocks, rooted, shared_heap  # noqa: F401 - they register functions
from smcoll.tuning.model.costs.work import (
    BUFFERS,
    COSTS,
    OF_A_REDUCTION,
    Plan,
    predict,
    vector_bytes,
)

__all__ = ["BUFFERS", "COSTS", "OF_A_REDUCTION", "Plan", "predict", "vector_bytes"]
