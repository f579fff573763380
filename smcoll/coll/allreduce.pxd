from smcoll.coll.pipeline cimport Call


cdef int allreduce_all_read(Call *call) noexcept nogil
cdef int allreduce_all_read_inline(Call *call) noexcept nogil
cdef int allreduce_recursive_doubling(Call *call) noexcept nogil
cdef int allreduce_recursive_halving(Call *call) noexcept nogil
cdef int allreduce_tiled(Call *call) noexcept nogil
cdef int allreduce_tiled_cyclic(Call *call) noexcept nogil
