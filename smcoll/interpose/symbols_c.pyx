"""The same for large counts (MPI 4): opened where MPI has these functions."""

from smcoll.interpose.functions cimport (
    ALLGATHER, ALLREDUCE, ALLTOALL, ALLTOALLV, ALLTOALLW, EXSCAN, GATHER, REDUCE_SCATTER,
    REDUCE_SCATTER_BLOCK, SCAN, SCATTER, word,
)
from smcoll.interpose.served cimport (
    allgatherv_form, alltoallv_form, bcast_form, equal_form, gatherv_form, reduce_form,
    reduction_form, rooted_form, scatterv_form,
)


cdef public int MPI_Bcast_c(word a, word b, word c, word d, word e) noexcept nogil:
    return bcast_form(True, a, b, c, d, e)


cdef public int MPI_Gather_c(word a, word b, word c, word d, word e, word f,
                             word g, word h) noexcept nogil:
    return rooted_form(GATHER, True, a, b, c, d, e, f, g, h)


cdef public int MPI_Gatherv_c(word a, word b, word c, word d, word e, word f, word g,
                              word h, word i) noexcept nogil:
    return gatherv_form(True, a, b, c, d, e, f, g, h, i)


cdef public int MPI_Scatter_c(word a, word b, word c, word d, word e, word f,
                              word g, word h) noexcept nogil:
    return rooted_form(SCATTER, True, a, b, c, d, e, f, g, h)


cdef public int MPI_Scatterv_c(word a, word b, word c, word d, word e, word f, word g,
                               word h, word i) noexcept nogil:
    return scatterv_form(True, a, b, c, d, e, f, g, h, i)


cdef public int MPI_Allgather_c(word a, word b, word c, word d, word e,
                                word f, word g) noexcept nogil:
    return equal_form(ALLGATHER, True, a, b, c, d, e, f, g)


cdef public int MPI_Allgatherv_c(word a, word b, word c, word d, word e, word f,
                                 word g, word h) noexcept nogil:
    return allgatherv_form(True, a, b, c, d, e, f, g, h)


cdef public int MPI_Alltoall_c(word a, word b, word c, word d, word e,
                               word f, word g) noexcept nogil:
    return equal_form(ALLTOALL, True, a, b, c, d, e, f, g)


cdef public int MPI_Alltoallv_c(word a, word b, word c, word d, word e, word f, word g,
                                word h, word i) noexcept nogil:
    return alltoallv_form(ALLTOALLV, True, a, b, c, d, e, f, g, h, i)


cdef public int MPI_Alltoallw_c(word a, word b, word c, word d, word e, word f, word g,
                                word h, word i) noexcept nogil:
    return alltoallv_form(ALLTOALLW, True, a, b, c, d, e, f, g, h, i)


cdef public int MPI_Reduce_c(word a, word b, word c, word d, word e,
                             word f, word g) noexcept nogil:
    return reduce_form(True, a, b, c, d, e, f, g)


cdef public int MPI_Allreduce_c(word a, word b, word c, word d, word e, word f) noexcept nogil:
    return reduction_form(ALLREDUCE, True, a, b, c, d, e, f)


cdef public int MPI_Scan_c(word a, word b, word c, word d, word e, word f) noexcept nogil:
    return reduction_form(SCAN, True, a, b, c, d, e, f)


cdef public int MPI_Exscan_c(word a, word b, word c, word d, word e, word f) noexcept nogil:
    return reduction_form(EXSCAN, True, a, b, c, d, e, f)


cdef public int MPI_Reduce_scatter_c(word a, word b, word c, word d,
                                     word e, word f) noexcept nogil:
    return reduction_form(REDUCE_SCATTER, True, a, b, c, d, e, f)


cdef public int MPI_Reduce_scatter_block_c(word a, word b, word c, word d,
                                           word e, word f) noexcept nogil:
    return reduction_form(REDUCE_SCATTER_BLOCK, True, a, b, c, d, e, f)
