from smcoll.buffers.buffers cimport Specification

# What goes to one rank, or comes from it.
cdef struct Block:
    char *address
    size_t nbytes              # bytes of the type signature


# A buffer argument that has a block for each rank.
cdef class Blocks:
    cdef Block *block
    cdef readonly int ranks
    cdef readonly object datatype   # of all blocks; None for a plain array, and where
    cdef readonly list datatypes    # each block has its own
    cdef readonly bint contiguous   # no datatype has holes
    cdef readonly size_t total      # bytes of all blocks
    cdef object owner               # keeps the memory alive
    cdef char *base                 # where the buffer begins
    cdef Py_ssize_t *counts         # as given, one a rank; NULL for equal blocks
    cdef Py_ssize_t *displacements


# The parsed arguments of one call at one rank; what a rank does not have is None.
cdef class Sides:
    cdef readonly Specification send_message, recv_message
    cdef readonly Blocks send_blocks, recv_blocks
    cdef readonly bint send_in_place, recv_in_place


cdef int check_message(Specification spec) except -1
cdef int read_integers(object sequence, int ranks, Py_ssize_t *integers) except -1
cdef Blocks parse_blocks(object spec, bint writable, int ranks)
cdef Blocks parse_vector(object spec, bint writable, int ranks)
cdef Blocks parse_vector_w(object spec, bint writable, int ranks)
cdef Sides parse_gather(sendbuf, recvbuf, int root, int rank, int size)
cdef Sides parse_gatherv(sendbuf, recvbuf, int root, int rank, int size)
cdef Sides parse_scatter(sendbuf, recvbuf, int root, int rank, int size)
cdef Sides parse_scatterv(sendbuf, recvbuf, int root, int rank, int size)
cdef Sides parse_allgather(sendbuf, recvbuf, int rank, int size)
cdef Sides parse_allgatherv(sendbuf, recvbuf, int rank, int size)
cdef Sides parse_alltoall(sendbuf, recvbuf, int rank, int size)
cdef Sides parse_alltoallv(sendbuf, recvbuf, int rank, int size)
cdef Sides parse_alltoallw(sendbuf, recvbuf, int rank, int size)
