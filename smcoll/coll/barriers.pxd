from smcoll.coll.pipeline cimport Call


cdef int barrier_all_read(Call *call) noexcept nogil
cdef int barrier_dissemination(Call *call) noexcept nogil
