from libc.stdint cimport uint64_t

from smcoll.base.kernels cimport Operation
from smcoll.buffers.messages cimport Messages
from smcoll.coll.allgather cimport Gathering
from smcoll.coll.pipeline cimport Plan
from smcoll.coll.reduce_scatter cimport Partition
from smcoll.engine.failure cimport AcrossNodes
from smcoll.engine.node cimport NodeEngine
from smcoll.internode.network cimport Network


# A reduction of the caller's, on whole vectors or a part of them.
cdef struct Reduction:
    const char *send
    char *recv
    size_t elements
    size_t unit                    # bytes of an element
    const Operation *operation
    bint ordered                   # may not commute: operands are combined in rank order
    bint internal                  # not the user's: few bytes, in flag lines whatever is set


cdef class Span:
    cdef readonly NodeEngine node  # of this node's ranks
    cdef AcrossNodes across        # what they know of the call over all nodes
    cdef readonly Network network
    cdef readonly object placement, config
    cdef list members              # ranks of each node
    cdef list first_ranks          # of each node
    cdef list node_of, local_of    # of each rank
    cdef int rank, size            # in the communicator
    cdef int nodes, mine           # how many nodes, and which is this one
    cdef int local, locals         # this rank among those of its node
    cdef uint64_t signature, total   # of the current call
    cdef int stage
    cdef list scratches
    cdef list layout               # nodes, those below one switch as neighbours
    cdef dict trees                # between nodes, as far as they were used
    cdef Plan fan_in, fan_out      # trees that need no memory but the flag lines
    cdef size_t in_lines           # bytes that fit those
    cdef size_t network_section, slice_above, bundle_size     # as configured
    cdef bint reduce_is_named, bcast_is_named

    cdef void begin(self, uint64_t call, uint64_t counted, uint64_t signature, uint64_t total)
    cdef char *scratch(self, int which, size_t nbytes) except NULL
    cdef int leader(self, int node, int root)
    cdef int local_leader(self, int root)
    cdef tuple tree(self, int root_node, bint chain, bint ordered)
    cdef size_t section(self, size_t unit)
    cdef uint64_t next_stage(self)
    cdef int bcast(self, char *buffer, size_t nbytes, int local_root) except -1
    cdef const Plan *reduction_plan(self, int collective, const Reduction *reduction,
                                    size_t nbytes) except NULL
    cdef int reduce(self, const Reduction *reduction, const char *send, char *recv,
                    size_t elements, int local_root) except -1
    cdef int reduce_scatter(self, const Reduction *reduction, const char *send, char *recv,
                            const Partition *blocks) except -1
    cdef int scan(self, const Reduction *reduction, int collective) except -1
    cdef int allgather(self, Gathering *blocks) except -1
    cdef int exchange(self, Messages messages) except -1


cdef inline void combine(const Reduction *reduction, char *out, const char *left,
                         const char *right, size_t elements):
    cdef const void *operands[2]
    operands[0] = left
    operands[1] = right
    if reduction.operation.kernel != NULL:
        reduction.operation.kernel(out, operands, 2, elements)
    elif elements > 0:
        reduction.operation.function(reduction.operation.context, out, operands, 2, elements)
