from smcoll.coll.pipeline cimport Call


cdef int bcast_scatter_allgather(Call *call) noexcept nogil
