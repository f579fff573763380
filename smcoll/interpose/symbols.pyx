"""Functions with the names of MPI's blocking collectives, which C libraries find first.

This module's library is opened for all (RTLD_GLOBAL) after mpi4py's, which calls MPI itself, and
before the C libraries.
"""

from smcoll.interpose.functions cimport (
    ALLGATHER, ALLREDUCE, ALLTOALL, ALLTOALLV, ALLTOALLW, BARRIER, EXSCAN, GATHER, REDUCE_SCATTER,
    REDUCE_SCATTER_BLOCK, SCAN, SCATTER, Arguments, word,
)
from smcoll.interpose.served cimport (
    allgatherv_form, alltoallv_form, bcast_form, call_of, carry_out, equal_form,
    gatherv_form, reduce_form, reduction_form, rooted_form, scatterv_form,
)


cdef public int MPI_Barrier(word comm) noexcept nogil:
    cdef Arguments call = call_of(BARRIER, False, comm)
    return carry_out(&call)


cdef public int MPI_Bcast(word a, word b, word c, word d, word e) noexcept nogil:
    return bcast_form(False, a, b, c, d, e)


cdef public int MPI_Gather(word a, word b, word c, word d, word e, word f,
                           word g, word h) noexcept nogil:
    return rooted_form(GATHER, False, a, b, c, d, e, f, g, h)


cdef public int MPI_Gatherv(word a, word b, word c, word d, word e, word f, word g,
                            word h, word i) noexcept nogil:
    return gatherv_form(False, a, b, c, d, e, f, g, h, i)


cdef public int MPI_Scatter(word a, word b, word c, word d, word e, word f,
                            word g, word h) noexcept nogil:
    return rooted_form(SCATTER, False, a, b, c, d, e, f, g, h)


cdef public int MPI_Scatterv(word a, word b, word c, word d, word e, word f, word g,
                             word h, word i) noexcept nogil:
    return scatterv_form(False, a, b, c, d, e, f, g, h, i)


cdef public int MPI_Allgather(word a, word b, word c, word d, word e,
                              word f, word g) noexcept nogil:
    return equal_form(ALLGATHER, False, a, b, c, d, e, f, g)


cdef public int MPI_Allgatherv(word a, word b, word c, word d, word e, word f,
                               word g, word h) noexcept nogil:
    return allgatherv_form(False, a, b, c, d, e, f, g, h)


cdef public int MPI_Alltoall(word a, word b, word c, word d, word e,
                             word f, word g) noexcept nogil:
    return equal_form(ALLTOALL, False, a, b, c, d, e, f, g)


cdef public int MPI_Alltoallv(word a, word b, word c, word d, word e, word f, word g,
                              word h, word i) noexcept nogil:
    return alltoallv_form(ALLTOALLV, False, a, b, c, d, e, f, g, h, i)


cdef public int MPI_Alltoallw(word a, word b, word c, word d, word e, word f, word g,
                              word h, word i) noexcept nogil:
    return alltoallv_form(ALLTOALLW, False, a, b, c, d, e, f, g, h, i)


cdef public int MPI_Reduce(word a, word b, word c, word d, word e, word f, word g) noexcept nogil:
    return reduce_form(False, a, b, c, d, e, f, g)


cdef public int MPI_Allreduce(word a, word b, word c, word d, word e, word f) noexcept nogil:
    return reduction_form(ALLREDUCE, False, a, b, c, d, e, f)


cdef public int MPI_Scan(word a, word b, word c, word d, word e, word f) noexcept nogil:
    return reduction_form(SCAN, False, a, b, c, d, e, f)


cdef public int MPI_Exscan(word a, word b, word c, word d, word e, word f) noexcept nogil:
    return reduction_form(EXSCAN, False, a, b, c, d, e, f)


cdef public int MPI_Reduce_scatter(word a, word b, word c, word d, word e, word f) noexcept nogil:
    return reduction_form(REDUCE_SCATTER, False, a, b, c, d, e, f)


cdef public int MPI_Reduce_scatter_block(word a, word b, word c, word d,
                                         word e, word f) noexcept nogil:
    return reduction_form(REDUCE_SCATTER_BLOCK, False, a, b, c, d, e, f)
