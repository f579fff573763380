from smcoll.allgather cimport Gathering
from smcoll.pipeline cimport Call


cdef int allreduce_shared_heap(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
cdef int reduce_shared_heap(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
cdef int bcast_shared_heap(Call *call, bint pipelined, size_t section_bytes) noexcept nogil
cdef int allgather_shared_heap(Call *call, Gathering *blocks, bint pipelined,
                               size_t section_bytes) noexcept nogil
