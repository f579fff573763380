# The table of functions that smcoll.h describes, for Cython: `smcoll.c_api` is the capsule.
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uintptr_t


cdef extern from "smcoll.h" nogil:
    enum:
        SMCOLL_API_VERSION, SMCOLL_SUCCESS, SMCOLL_USE_MPI

    enum:
        OP_SUM, OP_PROD, OP_MAX, OP_MIN, OP_LAND, OP_BAND, OP_LOR, OP_BOR, OP_LXOR, OP_BXOR

    enum:
        TYPE_INT8, TYPE_INT16, TYPE_INT32, TYPE_INT64
        TYPE_UINT8, TYPE_UINT16, TYPE_UINT32, TYPE_UINT64
        TYPE_BOOL, TYPE_FLOAT, TYPE_DOUBLE, TYPE_LONG_DOUBLE
        TYPE_COMPLEX_FLOAT, TYPE_COMPLEX_DOUBLE

    const char *SMCOLL_CAPSULE
    void *SMCOLL_IN_PLACE

    ctypedef struct smcoll_engine:
        pass

    ctypedef struct smcoll_api:
        int version
        int (*type_of)(uintptr_t) noexcept nogil
        int (*op_of)(uintptr_t) noexcept nogil
        size_t (*error)(smcoll_engine *, char *, size_t) noexcept nogil
        int (*barrier)(smcoll_engine *) noexcept nogil
        int (*bcast)(smcoll_engine *, void *, size_t, int) noexcept nogil
        int (*reduce)(smcoll_engine *, const void *, void *, size_t, int, int, int) noexcept nogil
        int (*allreduce)(smcoll_engine *, const void *, void *, size_t, int, int) noexcept nogil
        int (*scan)(smcoll_engine *, const void *, void *, size_t, int, int) noexcept nogil
        int (*exscan)(smcoll_engine *, const void *, void *, size_t, int, int) noexcept nogil
        int (*reduce_scatter)(smcoll_engine *, const void *, void *, const size_t *, int,
                              int) noexcept nogil
        int (*reduce_scatter_block)(smcoll_engine *, const void *, void *, size_t, int,
                                    int) noexcept nogil
        int (*allgather)(smcoll_engine *, const void *, void *, size_t) noexcept nogil
        int (*gather)(smcoll_engine *, const void *, void *, size_t, int) noexcept nogil
        int (*scatter)(smcoll_engine *, const void *, void *, size_t, int) noexcept nogil
        int (*alltoall)(smcoll_engine *, const void *, void *, size_t) noexcept nogil
        int (*allgatherv)(smcoll_engine *, const void *, size_t, void *, const size_t *,
                          const ptrdiff_t *) noexcept nogil
        int (*gatherv)(smcoll_engine *, const void *, size_t, void *, const size_t *,
                       const ptrdiff_t *, int) noexcept nogil
        int (*scatterv)(smcoll_engine *, const void *, const size_t *, const ptrdiff_t *, void *,
                        size_t, int) noexcept nogil
        int (*alltoallv)(smcoll_engine *, const void *, const size_t *, const ptrdiff_t *, void *,
                         const size_t *, const ptrdiff_t *) noexcept nogil
