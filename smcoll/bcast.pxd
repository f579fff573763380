from smcoll.pipeline cimport Call


cdef int bcast_fan_out(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
cdef int bcast_scatter_allgather(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
