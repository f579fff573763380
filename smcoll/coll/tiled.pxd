from smcoll.coll.pipeline cimport Call, Section

cdef int allreduce_tiled(Call *call) noexcept nogil
cdef int reduce_tiled(Call *call) noexcept nogil
cdef int copy_in_but_own_slice(Call *call, Section *section) noexcept nogil
cdef int copy_out_others(Call *call, Section *section) noexcept nogil
