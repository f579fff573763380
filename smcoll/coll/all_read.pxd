from smcoll.coll.pipeline cimport Call


cdef int allreduce_all_read(Call *call) noexcept nogil
cdef int allreduce_all_read_inline(Call *call) noexcept nogil
