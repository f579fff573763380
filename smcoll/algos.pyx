"""The front of the algorithms: their names, and one function per collective that runs one of them.

A name runs that algorithm and no other. Which form it takes for small messages (data in the flag
lines instead of the data regions) depends on the number of bytes only, which all ranks agree on.
"""

from smcoll.allgather cimport Gathering, allgather_direct, allgather_inline
from smcoll.allreduce cimport (
    allreduce_all_read, allreduce_fan_in_fan_out, allreduce_recursive_doubling,
    allreduce_recursive_halving, allreduce_tiled,
)
from smcoll.barrier cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_ALLREDUCE, COLLECTIVE_ALLTOALL, COLLECTIVE_BARRIER,
    COLLECTIVE_BCAST, COLLECTIVE_EXSCAN, COLLECTIVE_GATHER, COLLECTIVE_OBJECT_ALLGATHER,
    COLLECTIVE_OBJECT_ALLTOALL, COLLECTIVE_OBJECT_BCAST, COLLECTIVE_OBJECT_GATHER,
    COLLECTIVE_OBJECT_SCATTER, COLLECTIVE_REDUCE,
    COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_SCAN, COLLECTIVE_SCATTER, Team, barrier_all_read,
    barrier_dissemination, barrier_tree, use_segments,
)
from smcoll.bcast cimport bcast_fan_out
from smcoll.direct cimport (
    allgather_shared_heap, allreduce_shared_heap, bcast_shared_heap, reduce_shared_heap,
)
from smcoll.direct_own cimport reduce_scatter_shared_heap, scan_shared_heap
from smcoll.inline cimport allreduce_inline, bcast_inline, reduce_inline
from smcoll.pipeline cimport Call
from smcoll.reduce cimport reduce_fan_in, reduce_scatter_gather, reduce_tiled
from smcoll.reduce_scatter cimport Blocks, reduce_scatter_direct, reduce_scatter_inline
from smcoll.scan cimport scan_direct, scan_inline

ALGORITHMS = {
    "barrier": ("all_read", "tree", "dissemination"),
    "bcast": ("fan_out", "shared_heap"),
    "reduce": ("fan_in", "reduce_scatter_gather", "tiled", "shared_heap"),
    "allreduce": ("all_read", "fan_in_fan_out", "recursive_doubling", "recursive_halving",
                  "tiled", "shared_heap"),
    # One message for each pair of ranks, through their streams.
    "gather": ("direct",),
    "scatter": ("direct",),
    "alltoall": ("direct",),
    # Every rank posts its data once, the others read what they need.
    "allgather": ("direct", "shared_heap"),
    "reduce_scatter": ("direct", "shared_heap"),
    "scan": ("direct", "shared_heap"),
    "exscan": ("direct", "shared_heap"),
}

# The collectives whose data travel through the streams.
STREAMED = ("gather", "scatter", "alltoall")

# These combine operands in rank order, as operations that don't commute need it.
IN_RANK_ORDER = {
    "reduce": ("tiled", "shared_heap"),
    "allreduce": ("all_read", "tiled", "shared_heap"),
    "reduce_scatter": ("direct", "shared_heap"),
    "scan": ("direct", "shared_heap"),
    "exscan": ("direct", "shared_heap"),
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
        return algorithm == BCAST_FAN_OUT and nbytes <= team.layout.rooted_inline_size
    if collective == COLLECTIVE_REDUCE:
        return algorithm == REDUCE_FAN_IN and nbytes <= team.layout.rooted_inline_size
    if collective == COLLECTIVE_ALLREDUCE:
        return algorithm == ALLREDUCE_ALL_READ and nbytes <= team.layout.inline_size
    if (collective == COLLECTIVE_ALLGATHER or collective == COLLECTIVE_OBJECT_ALLGATHER
            or collective == COLLECTIVE_REDUCE_SCATTER):
        return algorithm != SHARED_HEAP and nbytes <= team.layout.inline_size
    if collective == COLLECTIVE_SCAN or collective == COLLECTIVE_EXSCAN:
        return algorithm != SHARED_HEAP and nbytes <= team.layout.rooted_inline_size
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
    call.operation = operands.operation
    call.root = operands.root
    call.sources = operands.sources
    call.streaming = operands.nbytes >= team.streaming_size
    call.fan_in = plan.fan_in
    call.fan_out = plan.fan_out
    use_segments(team, plan.segments)


cdef inline int run_barrier(Team *team, const Plan *plan) noexcept nogil:
    if plan.algorithm == BARRIER_TREE:
        return barrier_tree(team, plan.fan_in, plan.fan_out)
    if plan.algorithm == BARRIER_DISSEMINATION:
        return barrier_dissemination(team)
    return barrier_all_read(team)


cdef inline int run_bcast(Team *team, const Plan *plan, const Operands *operands) noexcept nogil:
    cdef Call call
    if is_inline(team, COLLECTIVE_BCAST, plan.algorithm, operands.nbytes):
        return bcast_inline(team, operands.recv, operands.nbytes, operands.root, plan.fan_out)
    fill_call(&call, team, plan, operands)
    if plan.algorithm == BCAST_SHARED_HEAP:
        return bcast_shared_heap(&call, plan.pipelined, plan.section_bytes)
    return bcast_fan_out(&call, plan.pipelined, plan.section_bytes)


cdef inline int run_reduce(Team *team, const Plan *plan, const Operands *operands) noexcept nogil:
    cdef Call call
    if is_inline(team, COLLECTIVE_REDUCE, plan.algorithm, operands.nbytes):
        return reduce_inline(team, operands.send, operands.recv, operands.nbytes,
                             operands.elements, operands.operation, operands.root, plan.fan_in,
                             operands.sources)
    fill_call(&call, team, plan, operands)
    if plan.algorithm == REDUCE_SCATTER_GATHER:
        return reduce_scatter_gather(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == REDUCE_SHARED_HEAP:
        return reduce_shared_heap(&call, plan.pipelined, plan.section_bytes)
    if plan.algorithm == REDUCE_TILED:
        return reduce_tiled(&call, plan.pipelined, plan.section_bytes)
    return reduce_fan_in(&call, plan.pipelined, plan.section_bytes)


cdef inline int run_allreduce(Team *team, const Plan *plan,
                              const Operands *operands) noexcept nogil:
    cdef Call call
    if is_inline(team, COLLECTIVE_ALLREDUCE, plan.algorithm, operands.nbytes):
        return allreduce_inline(team, operands.send, operands.recv, operands.nbytes,
                                operands.elements, operands.operation, operands.sources)
    fill_call(&call, team, plan, operands)
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
    return allreduce_all_read(&call, plan.pipelined, plan.section_bytes)


cdef inline int run_allgather(Team *team, const Plan *plan, const Operands *operands,
                              Gathering *blocks) noexcept nogil:
    cdef Call call
    cdef int rank
    if is_inline(team, COLLECTIVE_ALLGATHER, plan.algorithm, blocks.longest):
        return allgather_inline(team, blocks)
    fill_call(&call, team, plan, operands)
    for rank in range(team.size):
        blocks.recv[rank].streaming = (
            blocks.longest * <size_t> team.size >= team.streaming_size)
    if plan.algorithm == SHARED_HEAP:
        return allgather_shared_heap(&call, blocks, plan.pipelined, plan.section_bytes)
    return allgather_direct(&call, blocks, plan.pipelined, plan.section_bytes)


cdef inline int run_reduce_scatter(Team *team, const Plan *plan, const Operands *operands,
                                   const Blocks *blocks) noexcept nogil:
    cdef Call call
    if is_inline(team, COLLECTIVE_REDUCE_SCATTER, plan.algorithm, operands.nbytes):
        return reduce_scatter_inline(team, operands.send, operands.recv, blocks,
                                     operands.element_size, operands.operation, operands.sources)
    fill_call(&call, team, plan, operands)
    if plan.algorithm == SHARED_HEAP:
        return reduce_scatter_shared_heap(&call, blocks, plan.pipelined, plan.section_bytes)
    return reduce_scatter_direct(&call, blocks, plan.pipelined, plan.section_bytes)


cdef inline int run_scan(Team *team, const Plan *plan, const Operands *operands,
                         bint exclusive) noexcept nogil:
    cdef Call call
    if is_inline(team, COLLECTIVE_SCAN, plan.algorithm, operands.nbytes):
        return scan_inline(team, operands.send, operands.recv, operands.nbytes, operands.elements,
                           operands.operation, exclusive, operands.sources)
    fill_call(&call, team, plan, operands)
    if plan.algorithm == SHARED_HEAP:
        return scan_shared_heap(&call, exclusive, plan.pipelined, plan.section_bytes)
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
