from smcoll.coll.allgather cimport Gathering
from smcoll.coll.pipeline cimport Call


cdef int allreduce_shared_heap(Call *call) noexcept nogil
cdef int reduce_shared_heap(Call *call) noexcept nogil
cdef int bcast_shared_heap(Call *call) noexcept nogil
cdef int allgather_shared_heap(Call *call) noexcept nogil
