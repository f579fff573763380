from smcoll.coll.pipeline cimport Call
from smcoll.coll.reduce_scatter cimport Partition


cdef int reduce_scatter_shared_heap(Call *call) noexcept nogil
cdef int scan_shared_heap(Call *call) noexcept nogil
