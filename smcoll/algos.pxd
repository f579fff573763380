from smcoll.kernels cimport Operation
from smcoll.team cimport Team
from smcoll.trees cimport TreeView

# Numbers of the algorithms of a collective: positions in ALGORITHMS[collective].
cdef enum:
    BARRIER_ALL_READ = 0
    BARRIER_TREE = 1
    BARRIER_DISSEMINATION = 2
    BARRIER_HIERARCHICAL = 3
    BCAST_FAN_OUT = 0
    BCAST_N_ARY = 1
    BCAST_ONE_STAGE = 2
    BCAST_TWO_STAGE = 3
    BCAST_SCATTER_ALLGATHER = 4
    REDUCE_FAN_IN = 0
    REDUCE_SCATTER_GATHER = 1
    REDUCE_TILED = 2
    REDUCE_N_ARY = 3
    REDUCE_TILED_CYCLIC = 4
    REDUCE_TILED_HIERARCHICAL = 5
    ALLREDUCE_ALL_READ = 0
    ALLREDUCE_FAN_IN_FAN_OUT = 1
    ALLREDUCE_RECURSIVE_DOUBLING = 2
    ALLREDUCE_RECURSIVE_HALVING = 3
    ALLREDUCE_TILED = 4
    ALLREDUCE_REDUCE_BROADCAST = 5
    ALLREDUCE_DISSEMINATION = 6
    ALLREDUCE_TILED_CYCLIC = 7
    ALLREDUCE_TILED_HIERARCHICAL = 8
    REDUCE_SCATTER_DIRECT = 0
    REDUCE_SCATTER_TREE_ONE_STAGE = 1
    REDUCE_SCATTER_TREE_TWO_STAGE = 2
    REDUCE_SCATTER_TILED_ONE_STAGE = 3
    REDUCE_SCATTER_TILED_TWO_STAGE = 4
    SCATTER_DIRECT = 0
    SCATTER_TWO_STAGE = 1
    SCAN_CHAIN = 1             # and of Exscan
    # Arrays in shared heaps, used where they lie.
    BCAST_SHARED_HEAP = 5
    REDUCE_SHARED_HEAP = 6
    ALLREDUCE_SHARED_HEAP = 9
    REDUCE_SCATTER_SHARED_HEAP = 5
    ALLGATHER_SHARED_HEAP = 1
    SCAN_SHARED_HEAP = 2       # and of Exscan


# How one call is to be done.
cdef struct Plan:
    int algorithm
    const TreeView *fan_in
    const TreeView *fan_out
    int arity                  # of n-ary trees: a parent has arity - 1 children in each round
    size_t section_bytes       # bytes of the vector that go through one segment
    int segments               # that it uses of a bank
    bint pipelined


# The operands of one call. `operation` is NULL where nothing is reduced.
cdef struct Operands:
    const char *send
    char *recv
    size_t nbytes
    size_t elements
    size_t element_size
    const Operation *operation
    int root
    const void **sources       # scratch for three pointers a rank


cdef bint is_inline(const Team *team, int collective, int algorithm, size_t nbytes) noexcept nogil
cdef bint needs_data_regions(const Team *team, int collective, int algorithm,
                             size_t nbytes) noexcept nogil
cdef int run_collective(Team *team, int collective, const Plan *plan, const Operands *operands,
                        void *details) noexcept nogil
