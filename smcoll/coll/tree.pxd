from smcoll.coll.pipeline cimport Call, Section

cdef enum:
    STEP_PARTIAL = 1           # the sender's subtree is reduced in its region


cdef int bcast_fan_out(Call *call) noexcept nogil
cdef int bcast_n_ary(Call *call) noexcept nogil
cdef int bcast_one_stage(Call *call) noexcept nogil
cdef int bcast_two_stage(Call *call) noexcept nogil
cdef int reduce_fan_in(Call *call) noexcept nogil
cdef int reduce_n_ary(Call *call) noexcept nogil
cdef int allreduce_fan_in_fan_out(Call *call) noexcept nogil
cdef int allreduce_reduce_broadcast(Call *call) noexcept nogil
cdef int barrier_tree(Call *call) noexcept nogil
cdef int barrier_hierarchical(Call *call) noexcept nogil

# What reduce_scatter_tree_* share.
cdef int reduce_up(Call *call, Section *section) noexcept nogil
cdef void up_n_ary(Call *call, int root) noexcept nogil
