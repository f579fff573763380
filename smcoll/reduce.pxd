from smcoll.pipeline cimport Call


cdef int reduce_fan_in(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
cdef int reduce_scatter_gather(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
cdef int reduce_tiled(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
cdef int reduce_tiled_cyclic(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
