from smcoll.pipeline cimport Call
from smcoll.reduce_scatter cimport Blocks


cdef int reduce_scatter_shared_heap(Call *call, const Blocks *blocks, bint pipelined,
                                    size_t section_bytes) noexcept nogil
cdef int scan_shared_heap(Call *call, bint exclusive, bint pipelined,
                          size_t section_bytes) noexcept nogil
