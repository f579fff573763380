from smcoll.coll.pipeline cimport Call
from smcoll.coll.reduce_scatter cimport Partition


cdef int reduce_scatter_tree_one_stage(Call *call) noexcept nogil
cdef int reduce_scatter_tree_two_stage(Call *call) noexcept nogil
cdef int reduce_scatter_tiled_one_stage(Call *call) noexcept nogil
cdef int reduce_scatter_tiled_two_stage(Call *call) noexcept nogil
