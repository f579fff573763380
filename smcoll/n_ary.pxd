from smcoll.domains cimport Neighbours
from smcoll.kernels cimport Operation
from smcoll.pipeline cimport Call, Section
from smcoll.team cimport Team

cdef enum:
    STEP_PARTIAL = 1           # the sender's subtree is reduced in its region
    STEP_RESULT = 2            # the result is


cdef int bcast_n_ary(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
cdef int bcast_one_stage(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
cdef int bcast_two_stage(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
cdef int reduce_n_ary(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
cdef int allreduce_reduce_broadcast(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
cdef int reduce_up(Call *call, Section *section) noexcept nogil
cdef void grow_tree(Call *call, int root) noexcept nogil
cdef int bcast_inline_down(Team *team, char *buffer, size_t nbytes,
                           const Neighbours *down) noexcept nogil
cdef int reduce_inline_up(Team *team, const char *send, char *recv, size_t nbytes, size_t elements,
                          const Operation *operation, const Neighbours *up, int arity,
                          const void **sources) noexcept nogil
cdef int barrier_hierarchical(Team *team, int arity) noexcept nogil
