from smcoll.pipeline cimport Call
from smcoll.reduce_scatter cimport Blocks


cdef int reduce_scatter_tree(Call *call, const Blocks *blocks, int stages, bint pipelined,
                             size_t section_bytes) noexcept nogil
cdef int reduce_scatter_tiled(Call *call, const Blocks *blocks, int stages, bint pipelined,
                              size_t section_bytes) noexcept nogil
