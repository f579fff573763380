"""The front of the algorithms: their names, and one function per collective that runs one of them.

A name runs that algorithm and no other. Which form it takes for small messages (data in the flag
lines instead of the data regions) depends on the number of bytes only, which all ranks agree on.
"""

from smcoll.allgather cimport Gathering, allgather_direct, allgather_inline
from smcoll.allreduce cimport (
    allreduce_all_read, allreduce_fan_in_fan_out, allreduce_recursive_doubling,
    allreduce_recursive_halving, allreduce_tiled, allreduce_tiled_cyclic,
)
from smcoll.barrier cimport barrier_all_read, barrier_dissemination, barrier_tree, use_segments
from smcoll.bcast cimport bcast_fan_out, bcast_scatter_allgather
from smcoll.direct cimport (
    allgather_shared_heap, allreduce_shared_heap, bcast_shared_heap, reduce_shared_heap,
)
from smcoll.direct_own cimport reduce_scatter_shared_heap, scan_shared_heap
from smcoll.dissemination cimport allreduce_dissemination
from smcoll.domains cimport Neighbours, n_ary_tree, one_stage_tree, two_stage_tree
from smcoll.inline cimport allreduce_inline, bcast_inline, reduce_inline
from smcoll.n_ary cimport (
    allreduce_reduce_broadcast, barrier_hierarchical, bcast_inline_down, bcast_n_ary,
    bcast_one_stage, bcast_two_stage, reduce_inline_up, reduce_n_ary,
)
from smcoll.pipeline cimport Call
from smcoll.reduce cimport (
    reduce_fan_in, reduce_scatter_gather, reduce_tiled, reduce_tiled_cyclic,
)
from smcoll.reduce_scatter cimport Blocks, reduce_scatter_direct, reduce_scatter_inline
from smcoll.scan cimport scan_chain, scan_direct, scan_inline, scan_inline_chain
from smcoll.signature cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_ALLREDUCE, COLLECTIVE_ALLTOALL, COLLECTIVE_BARRIER,
    COLLECTIVE_BCAST, COLLECTIVE_EXSCAN, COLLECTIVE_GATHER, COLLECTIVE_OBJECT_ALLGATHER,
    COLLECTIVE_OBJECT_ALLTOALL, COLLECTIVE_OBJECT_BCAST, COLLECTIVE_OBJECT_GATHER,
    COLLECTIVE_OBJECT_SCATTER, COLLECTIVE_REDUCE, COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_SCAN,
    COLLECTIVE_SCATTER,
)
from smcoll.staged_scatter cimport reduce_scatter_tiled, reduce_scatter_tree
from smcoll.team cimport DONE, Team
from smcoll.tiled_hierarchical cimport allreduce_tiled_hierarchical, reduce_tiled_hierarchical

ALGORITHMS = {
    "barrier": ("all_read", "tree", "dissemination", "hierarchical"),
    "bcast": ("fan_out", "n_ary", "one_stage", "two_stage", "scatter_allgather",
              "shared_heap"),
    "reduce": ("fan_in", "reduce_scatter_gather", "tiled", "n_ary", "tiled_cyclic",
               "tiled_hierarchical", "shared_heap"),
    # Dissemination gives the ranks results that differ in their last bits.
    "allreduce": ("all_read", "fan_in_fan_out", "recursive_doubling", "recursive_halving",
                  "tiled", "reduce_broadcast", "dissemination", "tiled_cyclic",
                  "tiled_hierarchical", "shared_heap"),
    # One message for each pair of ranks, through their streams.
    "gather": ("direct",),
    "scatter": ("direct", "two_stage"),
    "alltoall": ("direct",),
    # Every rank posts its data once, the others read what they need.
    "allgather": ("direct", "shared_heap"),
    "reduce_scatter": ("direct", "tree_one_stage", "tree_two_stage", "tiled_one_stage",
                       "tiled_two_stage", "shared_heap"),
    "scan": ("direct", "chain", "shared_heap"),
    "exscan": ("direct", "chain", "shared_heap"),
}

# The collectives whose data travel through the streams.
STREAMED = ("gather", "scatter", "alltoall")

# These combine operands in rank order, as operations that don't commute need it.
IN_RANK_ORDER = {
    "reduce": ("tiled", "shared_heap"),
    "allreduce": ("tiled", "all_read", "shared_heap"),
    "reduce_scatter": ("direct", "shared_heap"),
    "scan": ("direct", "chain", "shared_heap"),
    "exscan": ("direct", "chain", "shared_heap"),
}

# Which radices an algorithm has. GS's: children of a parent. LHS's n is the arity: a parent has
# n - 1 children in each round, and takes part in the next one.
RADICES = {
    ("barrier", "hierarchical"): ("arity",),
    ("bcast", "n_ary"): ("arity",),
    ("reduce", "n_ary"): ("arity",),
    ("reduce", "tiled_hierarchical"): ("arity",),
    ("allreduce", "reduce_broadcast"): ("arity",),
    ("allreduce", "tiled_hierarchical"): ("arity",),
    ("reduce_scatter", "tree_one_stage"): ("arity",),
    ("reduce_scatter", "tree_two_stage"): ("arity",),
    ("reduce_scatter", "tiled_one_stage"): ("arity",),
    ("reduce_scatter", "tiled_two_stage"): ("arity",),
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
    "gather": COLLECTIVE_GATHER,
    "scatter": COLLECTIVE_SCATTER,
    "alltoall": COLLECTIVE_ALLTOALL,
    "allgather": COLLECTIVE_ALLGATHER,
    "reduce_scatter": COLLECTIVE_REDUCE_SCATTER,
    "scan": COLLECTIVE_SCAN,
    "exscan": COLLECTIVE_EXSCAN,
}

# The lower-case ones, which have no choice of their own.
OBJECT_COLLECTIVES = {
    "bcast_objects": COLLECTIVE_OBJECT_BCAST,
    "gather_objects": COLLECTIVE_OBJECT_GATHER,
    "scatter_objects": COLLECTIVE_OBJECT_SCATTER,
    "allgather_objects": COLLECTIVE_OBJECT_ALLGATHER,
    "alltoall_objects": COLLECTIVE_OBJECT_ALLTOALL,
}


cdef bint is_inline(const Team *team, int collective, int algorithm, size_t nbytes) noexcept nogil:
    """Whether the data of such a call travel in the flag lines.

    ``nbytes``: of the longest block in an Allgather, of the whole vector in a Reduce_scatter.
    """
    if collective == COLLECTIVE_BCAST or collective == COLLECTIVE_OBJECT_BCAST:
        return (algorithm != BCAST_SCATTER_ALLGATHER and algorithm != BCAST_SHARED_HEAP
                and nbytes <= team.layout.rooted_inline_size)
    if collective == COLLECTIVE_REDUCE:
        return ((algorithm == REDUCE_FAN_IN or algorithm == REDUCE_N_ARY)
                and nbytes <= team.layout.rooted_inline_size)
    if collective == COLLECTIVE_ALLREDUCE:
        if algorithm == ALLREDUCE_REDUCE_BROADCAST:
            return nbytes <= team.layout.rooted_inline_size
        return algorithm == ALLREDUCE_ALL_READ and nbytes <= team.layout.inline_size
    if collective == COLLECTIVE_REDUCE_SCATTER:
        return algorithm == REDUCE_SCATTER_DIRECT and nbytes <= team.layout.inline_size
    if collective == COLLECTIVE_ALLGATHER or collective == COLLECTIVE_OBJECT_ALLGATHER:
        return algorithm != ALLGATHER_SHARED_HEAP and nbytes <= team.layout.inline_size
    if collective == COLLECTIVE_SCAN or collective == COLLECTIVE_EXSCAN:
        return algorithm != SCAN_SHARED_HEAP and nbytes <= team.layout.rooted_inline_size
    return False


cdef bint needs_data_regions(const Team *team, int collective, int algorithm,
                             size_t nbytes) noexcept nogil:
    return (collective != COLLECTIVE_BARRIER and nbytes > 0
            and not is_inline(team, collective, algorithm, nbytes))


cdef inline void fill_call(Call *call, Team *team, const Plan *plan,
                           const Operands *operands, int collective) noexcept nogil:
    call.team = team
    call.send = operands.send
    call.recv = operands.recv
    call.nbytes = operands.nbytes
    call.element_size = operands.element_size
    call.operation = operands.operation
    call.root = operands.root
    call.sources = operands.sources
    call.streaming = operands.nbytes >= team.streaming_from[collective]
    call.fan_in = plan.fan_in
    call.fan_out = plan.fan_out
    call.arity = plan.arity
    use_segments(team, plan.segments)


cdef inline int run_barrier(Team *team, const Plan *plan) noexcept nogil:
    if plan.algorithm == BARRIER_TREE:
        return barrier_tree(team, plan.fan_in, plan.fan_out)
    if plan.algorithm == BARRIER_DISSEMINATION:
        return barrier_dissemination(team)
    if plan.algorithm == BARRIER_HIERARCHICAL:
        return barrier_hierarchical(team, plan.arity)
    return barrier_all_read(team)


cdef int bcast_inline_by_name(Team *team, const Plan *plan,
                              const Operands *operands) noexcept nogil:
    """A tree that follows the hardware."""
    cdef Neighbours down
    down.child = team.scratch
    if plan.algorithm == BCAST_N_ARY:
        n_ary_tree(team.domains, team.rank, operands.root, plan.arity, &down)
    elif plan.algorithm == BCAST_ONE_STAGE:
        one_stage_tree(team.domains, team.rank, operands.root, &down)
    else:
        two_stage_tree(team.domains, team.rank, operands.root, &down)
    return bcast_inline_down(team, operands.recv, operands.nbytes, &down)


cdef int reduce_inline_by_tree(Team *team, const Plan *plan, const Operands *operands,
                               int root) noexcept nogil:
    cdef Neighbours up
    up.child = team.scratch
    n_ary_tree(team.domains, team.rank, root, plan.arity, &up)
    return reduce_inline_up(team, operands.send, operands.recv, operands.nbytes,
                            operands.elements, operands.operation, &up, plan.arity,
                            operands.sources)


cdef int reduce_broadcast_inline(Team *team, const Plan *plan,
                                 const Operands *operands) noexcept nogil:
    """Up to rank 0 and down from it: two slots."""
    cdef Neighbours down
    cdef int status = reduce_inline_by_tree(team, plan, operands, 0)
    if status != DONE:
        return status
    down.child = team.scratch
    two_stage_tree(team.domains, team.rank, 0, &down)
    return bcast_inline_down(team, operands.recv, operands.nbytes, &down)


cdef inline int run_bcast(Team *team, const Plan *plan, const Operands *operands) noexcept nogil:
    cdef Call call
    if is_inline(team, COLLECTIVE_BCAST, plan.algorithm, operands.nbytes):
        if plan.algorithm == BCAST_FAN_OUT:
            return bcast_inline(team, operands.recv, operands.nbytes, operands.root, plan.fan_out)
        return bcast_inline_by_name(team, plan, operands)
    fill_call(&call, team, plan, operands, COLLECTIVE_BCAST)
    if plan.algorithm == BCAST_SHARED_HEAP:
        return bcast_shared_heap(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == BCAST_N_ARY:
        return bcast_n_ary(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == BCAST_ONE_STAGE:
        return bcast_one_stage(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == BCAST_TWO_STAGE:
        return bcast_two_stage(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == BCAST_SCATTER_ALLGATHER:
        return bcast_scatter_allgather(&call, plan.pipelined, plan.section_bytes)
    return bcast_fan_out(&call, plan.pipelined, plan.section_bytes)


cdef inline int run_reduce(Team *team, const Plan *plan, const Operands *operands) noexcept nogil:
    cdef Call call
    if is_inline(team, COLLECTIVE_REDUCE, plan.algorithm, operands.nbytes):
        if plan.algorithm == REDUCE_N_ARY:
            return reduce_inline_by_tree(team, plan, operands, operands.root)
        return reduce_inline(team, operands.send, operands.recv, operands.nbytes,
                             operands.elements, operands.operation, operands.root, plan.fan_in,
                             operands.sources)
    fill_call(&call, team, plan, operands, COLLECTIVE_REDUCE)
    if plan.algorithm == REDUCE_SCATTER_GATHER:
        return reduce_scatter_gather(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == REDUCE_SHARED_HEAP:
        return reduce_shared_heap(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == REDUCE_TILED:
        return reduce_tiled(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == REDUCE_N_ARY:
        return reduce_n_ary(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == REDUCE_TILED_CYCLIC:
        return reduce_tiled_cyclic(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == REDUCE_TILED_HIERARCHICAL:
        return reduce_tiled_hierarchical(&call, plan.pipelined, plan.section_bytes)
    return reduce_fan_in(&call, plan.pipelined, plan.section_bytes)


cdef inline int run_allreduce(Team *team, const Plan *plan,
                              const Operands *operands) noexcept nogil:
    cdef Call call
    if is_inline(team, COLLECTIVE_ALLREDUCE, plan.algorithm, operands.nbytes):
        if plan.algorithm == ALLREDUCE_REDUCE_BROADCAST:
            return reduce_broadcast_inline(team, plan, operands)
        return allreduce_inline(team, operands.send, operands.recv, operands.nbytes,
                                operands.elements, operands.operation, operands.sources)
    fill_call(&call, team, plan, operands, COLLECTIVE_ALLREDUCE)
    if plan.algorithm == ALLREDUCE_FAN_IN_FAN_OUT:
        return allreduce_fan_in_fan_out(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == ALLREDUCE_RECURSIVE_DOUBLING:
        return allreduce_recursive_doubling(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == ALLREDUCE_RECURSIVE_HALVING:
        return allreduce_recursive_halving(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == ALLREDUCE_TILED:
        return allreduce_tiled(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == ALLREDUCE_SHARED_HEAP:
        return allreduce_shared_heap(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == ALLREDUCE_REDUCE_BROADCAST:
        return allreduce_reduce_broadcast(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == ALLREDUCE_DISSEMINATION:
        return allreduce_dissemination(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == ALLREDUCE_TILED_CYCLIC:
        return allreduce_tiled_cyclic(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == ALLREDUCE_TILED_HIERARCHICAL:
        return allreduce_tiled_hierarchical(&call, plan.pipelined, plan.section_bytes)
    return allreduce_all_read(&call, plan.pipelined, plan.section_bytes)


cdef inline int run_allgather(Team *team, const Plan *plan, const Operands *operands,
                              Gathering *blocks) noexcept nogil:
    cdef Call call
    cdef int rank
    if is_inline(team, COLLECTIVE_ALLGATHER, plan.algorithm, blocks.longest):
        return allgather_inline(team, blocks)
    fill_call(&call, team, plan, operands, COLLECTIVE_ALLGATHER)
    for rank in range(team.size):
        blocks.recv[rank].streaming = (
            blocks.longest * <size_t> team.size >= team.streaming_from[COLLECTIVE_ALLGATHER])
    if plan.algorithm == ALLGATHER_SHARED_HEAP:
        return allgather_shared_heap(&call, blocks, plan.pipelined, plan.section_bytes)
    return allgather_direct(&call, blocks, plan.pipelined, plan.section_bytes)


cdef inline int run_reduce_scatter(Team *team, const Plan *plan, const Operands *operands,
                                   const Blocks *blocks) noexcept nogil:
    cdef Call call
    if is_inline(team, COLLECTIVE_REDUCE_SCATTER, plan.algorithm, operands.nbytes):
        return reduce_scatter_inline(team, operands.send, operands.recv, blocks,
                                     operands.element_size, operands.operation, operands.sources)
    fill_call(&call, team, plan, operands, COLLECTIVE_REDUCE_SCATTER)
    if plan.algorithm == REDUCE_SCATTER_SHARED_HEAP:
        return reduce_scatter_shared_heap(&call, blocks, plan.pipelined, plan.section_bytes)
    if plan.algorithm == REDUCE_SCATTER_TREE_ONE_STAGE:
        return reduce_scatter_tree(&call, blocks, 1, plan.pipelined, plan.section_bytes)
    if plan.algorithm == REDUCE_SCATTER_TREE_TWO_STAGE:
        return reduce_scatter_tree(&call, blocks, 2, plan.pipelined, plan.section_bytes)
    if plan.algorithm == REDUCE_SCATTER_TILED_ONE_STAGE:
        return reduce_scatter_tiled(&call, blocks, 1, plan.pipelined, plan.section_bytes)
    if plan.algorithm == REDUCE_SCATTER_TILED_TWO_STAGE:
        return reduce_scatter_tiled(&call, blocks, 2, plan.pipelined, plan.section_bytes)
    return reduce_scatter_direct(&call, blocks, plan.pipelined, plan.section_bytes)


cdef inline int run_scan(Team *team, const Plan *plan, const Operands *operands,
                         bint exclusive) noexcept nogil:
    cdef Call call
    if is_inline(team, COLLECTIVE_SCAN, plan.algorithm, operands.nbytes):
        if plan.algorithm == SCAN_CHAIN:
            return scan_inline_chain(team, operands.send, operands.recv, operands.nbytes,
                                     operands.elements, operands.operation, exclusive)
        return scan_inline(team, operands.send, operands.recv, operands.nbytes, operands.elements,
                           operands.operation, exclusive, operands.sources)
    fill_call(&call, team, plan, operands, COLLECTIVE_SCAN)
    if plan.algorithm == SCAN_SHARED_HEAP:
        return scan_shared_heap(&call, exclusive, plan.pipelined, plan.section_bytes)
    if plan.algorithm == SCAN_CHAIN:
        return scan_chain(&call, exclusive, plan.pipelined, plan.section_bytes)
    return scan_direct(&call, exclusive, plan.pipelined, plan.section_bytes)


cdef int run_collective(Team *team, int collective, const Plan *plan, const Operands *operands,
                        void *details) noexcept nogil:
    """The one of them that the number names. ``details``: what only some collectives have."""
    if collective == COLLECTIVE_ALLREDUCE:
        return run_allreduce(team, plan, operands)
    if collective == COLLECTIVE_BCAST or collective == COLLECTIVE_OBJECT_BCAST:
        return run_bcast(team, plan, operands)
    if collective == COLLECTIVE_REDUCE:
        return run_reduce(team, plan, operands)
    if collective == COLLECTIVE_ALLGATHER or collective == COLLECTIVE_OBJECT_ALLGATHER:
        return run_allgather(team, plan, operands, <Gathering *> details)
    if collective == COLLECTIVE_REDUCE_SCATTER:
        return run_reduce_scatter(team, plan, operands, <const Blocks *> details)
    if collective == COLLECTIVE_SCAN or collective == COLLECTIVE_EXSCAN:
        return run_scan(team, plan, operands, collective == COLLECTIVE_EXSCAN)
    return run_barrier(team, plan)
