from smcoll.pipeline cimport Call


cdef int allreduce_all_read(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
cdef int allreduce_fan_in_fan_out(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
cdef int allreduce_recursive_doubling(Call *call, bint pipelined,
                                      size_t section_bytes) noexcept nogil
cdef int allreduce_recursive_halving(Call *call, bint pipelined,
                                     size_t section_bytes) noexcept nogil
cdef int allreduce_tiled(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
cdef int allreduce_tiled_cyclic(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
