from smcoll.pipeline cimport Call, Section


cdef int copy_in_others(Call *call, Section *section) noexcept nogil
cdef int reduce_own_slice_for_all(Call *call, Section *section) noexcept nogil
cdef int reduce_own_slice_for_root(Call *call, Section *section) noexcept nogil
cdef int copy_out_others(Call *call, Section *section) noexcept nogil
cdef int copy_out_at_root(Call *call, Section *section) noexcept nogil
