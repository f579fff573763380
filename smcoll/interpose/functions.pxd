from libc.stdint cimport intptr_t

# Any argument.
ctypedef intptr_t word

# The collectives, in the order of NAMES.
cdef enum:
    BARRIER, BCAST, GATHER, GATHERV, SCATTER, SCATTERV, ALLGATHER, ALLGATHERV
    ALLTOALL, ALLTOALLV, ALLTOALLW, REDUCE, ALLREDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK
    SCAN, EXSCAN, FUNCTIONS

cdef enum:
    SUCCESS = 0


# One call from C. What a collective does not have is 0.
cdef struct Arguments:
    int function
    bint wide                  # counts are MPI_Count, displacements MPI_Aint; else both int
    word send, send_count, send_starts, send_type
    word recv, recv_count, recv_starts, recv_type
    word op, root, comm


cdef int by_mpi(const Arguments *call) noexcept nogil

# MPI's own.
ctypedef int (*set_attr_function)(word, int, void *) noexcept nogil
ctypedef int (*two_words)(word, void *) noexcept nogil
ctypedef int (*error_function)(word, int) noexcept nogil
ctypedef int (*code_function)(int, int *) noexcept nogil
ctypedef int (*keyval_function)(void *, void *, int *, void *) noexcept nogil


cdef struct Helpers:
    set_attr_function set_attr
    keyval_function create_keyval
    two_words comm_size, comm_rank, test_inter, type_size
    error_function call_errhandler
    code_function error_class


cdef Helpers mpi
