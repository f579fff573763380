from smcoll.coll.pipeline cimport Call


cdef int allreduce_dissemination(Call *call) noexcept nogil
