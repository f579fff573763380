"""The front of the algorithms: their names, and one function per collective that runs one of them.

A name runs that algorithm and no other. Which form it takes for small messages (data in the flag
lines instead of the data regions) depends on the number of bytes only, which all ranks agree on.
"""

from smcoll.allreduce cimport (
    allreduce_all_read, allreduce_fan_in_fan_out, allreduce_recursive_doubling,
    allreduce_recursive_halving, allreduce_tiled,
)
from smcoll.barrier cimport (
    COLLECTIVE_ALLREDUCE, COLLECTIVE_BARRIER, COLLECTIVE_BCAST, COLLECTIVE_REDUCE, Team,
    barrier_all_read, barrier_dissemination, barrier_tree,
)
from smcoll.bcast cimport bcast_fan_out
from smcoll.inline cimport allreduce_inline, bcast_inline, reduce_inline
from smcoll.pipeline cimport Call
from smcoll.reduce cimport reduce_fan_in, reduce_scatter_gather, reduce_tiled

ALGORITHMS = {
    "barrier": ("all_read", "tree", "dissemination"),
    "bcast": ("fan_out",),
    "reduce": ("fan_in", "reduce_scatter_gather", "tiled"),
    "allreduce": ("all_read", "fan_in_fan_out", "recursive_doubling", "recursive_halving",
                  "tiled"),
}

# Which radices an algorithm has.
RADICES = {
    ("barrier", "tree"): ("fan_in", "fan_out"),
    ("bcast", "fan_out"): ("fan_out",),
    ("reduce", "fan_in"): ("fan_in",),
    ("allreduce", "fan_in_fan_out"): ("fan_in", "fan_out"),
}

COLLECTIVE_NUMBERS = {
    "barrier": COLLECTIVE_BARRIER,
    "bcast": COLLECTIVE_BCAST,
    "reduce": COLLECTIVE_REDUCE,
    "allreduce": COLLECTIVE_ALLREDUCE,
}


cdef bint is_inline(const Team *team, int collective, int algorithm, size_t nbytes) noexcept nogil:
    """Whether the data of such a call travel in the flag lines."""
    if collective == COLLECTIVE_BCAST:
        return algorithm == BCAST_FAN_OUT and nbytes <= team.layout.rooted_inline_size
    if collective == COLLECTIVE_REDUCE:
        return algorithm == REDUCE_FAN_IN and nbytes <= team.layout.rooted_inline_size
    if collective == COLLECTIVE_ALLREDUCE:
        return algorithm == ALLREDUCE_ALL_READ and nbytes <= team.layout.inline_size
    return False


cdef bint needs_data_regions(const Team *team, int collective, int algorithm,
                             size_t nbytes) noexcept nogil:
    return (collective != COLLECTIVE_BARRIER and nbytes > 0
            and not is_inline(team, collective, algorithm, nbytes))


cdef inline void fill_call(Call *call, Team *team, const Plan *plan,
                           const Operands *operands) noexcept nogil:
    call.team = team
    call.send = operands.send
    call.recv = operands.recv
    call.nbytes = operands.nbytes
    call.element_size = operands.element_size
    call.kernel = operands.kernel
    call.root = operands.root
    call.sources = operands.sources
    call.fan_in = plan.fan_in
    call.fan_out = plan.fan_out


cdef int run_barrier(Team *team, const Plan *plan) noexcept nogil:
    if plan.algorithm == BARRIER_TREE:
        return barrier_tree(team, plan.fan_in, plan.fan_out)
    if plan.algorithm == BARRIER_DISSEMINATION:
        return barrier_dissemination(team)
    return barrier_all_read(team)


cdef int run_bcast(Team *team, const Plan *plan, const Operands *operands) noexcept nogil:
    cdef Call call
    if is_inline(team, COLLECTIVE_BCAST, plan.algorithm, operands.nbytes):
        return bcast_inline(team, operands.recv, operands.nbytes, operands.root, plan.fan_out)
    fill_call(&call, team, plan, operands)
    return bcast_fan_out(&call, plan.pipelined, plan.section_bytes)


cdef int run_reduce(Team *team, const Plan *plan, const Operands *operands) noexcept nogil:
    cdef Call call
    if is_inline(team, COLLECTIVE_REDUCE, plan.algorithm, operands.nbytes):
        return reduce_inline(team, operands.send, operands.recv, operands.nbytes,
                             operands.elements, operands.kernel, operands.root, plan.fan_in,
                             operands.sources)
    fill_call(&call, team, plan, operands)
    if plan.algorithm == REDUCE_SCATTER_GATHER:
        return reduce_scatter_gather(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == REDUCE_TILED:
        return reduce_tiled(&call, plan.pipelined, plan.section_bytes)
    return reduce_fan_in(&call, plan.pipelined, plan.section_bytes)


cdef int run_allreduce(Team *team, const Plan *plan, const Operands *operands) noexcept nogil:
    cdef Call call
    if is_inline(team, COLLECTIVE_ALLREDUCE, plan.algorithm, operands.nbytes):
        return allreduce_inline(team, operands.send, operands.recv, operands.nbytes,
                                operands.elements, operands.kernel, operands.sources)
    fill_call(&call, team, plan, operands)
    if plan.algorithm == ALLREDUCE_FAN_IN_FAN_OUT:
        return allreduce_fan_in_fan_out(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == ALLREDUCE_RECURSIVE_DOUBLING:
        return allreduce_recursive_doubling(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == ALLREDUCE_RECURSIVE_HALVING:
        return allreduce_recursive_halving(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == ALLREDUCE_TILED:
        return allreduce_tiled(&call, plan.pipelined, plan.section_bytes)
    return allreduce_all_read(&call, plan.pipelined, plan.section_bytes)
