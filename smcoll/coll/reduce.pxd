from smcoll.coll.pipeline cimport Call


cdef int reduce_scatter_gather(Call *call) noexcept nogil
cdef int reduce_tiled(Call *call) noexcept nogil
cdef int reduce_tiled_cyclic(Call *call) noexcept nogil
