from libc.stdint cimport intptr_t

# Any argument.
ctypedef intptr_t word

# The collectives, in the order of NAMES.
cdef enum:
    BARRIER, BCAST, GATHER, GATHERV, SCATTER, SCATTERV, ALLGATHER, ALLGATHERV
    ALLTOALL, ALLTOALLV, ALLTOALLW, REDUCE, ALLREDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK
    SCAN, EXSCAN, FUNCTIONS
    # What `serve` returns besides MPI's codes: MPI is to carry the call out.
    NOT_SERVED = -1


# One call from C. What a collective does not have is 0.
cdef struct Arguments:
    int function
    bint wide                  # counts are MPI_Count, displacements MPI_Aint; else both int
    word send, send_count, send_starts, send_type
    word recv, recv_count, recv_starts, recv_type
    word op, root, comm


cdef int serve(const Arguments *call) noexcept nogil
cdef void *function_of_mpi(const Arguments *call) noexcept nogil
cdef int left_to_mpi(const Arguments *call, int code) noexcept nogil


cdef inline Arguments call_of(int function, bint wide, word comm) noexcept nogil:
    cdef Arguments call
    call.function = function
    call.wide = wide
    call.comm = comm
    call.send = call.send_count = call.send_starts = call.send_type = 0
    call.recv = call.recv_count = call.recv_starts = call.recv_type = 0
    call.op = call.root = 0
    return call


ctypedef int (*mpi_1)(word) noexcept nogil
ctypedef int (*mpi_5)(word, word, word, word, word) noexcept nogil
ctypedef int (*mpi_6)(word, word, word, word, word, word) noexcept nogil
ctypedef int (*mpi_7)(word, word, word, word, word, word, word) noexcept nogil
ctypedef int (*mpi_8)(word, word, word, word, word, word, word, word) noexcept nogil
ctypedef int (*mpi_9)(word, word, word, word, word, word, word, word, word) noexcept nogil


# One function for each list of arguments: buffer, count, type, root, comm
cdef inline int bcast_form(bint wide, word a, word b, word c, word d, word e) noexcept nogil:
    cdef Arguments call = call_of(BCAST, wide, e)
    call.recv, call.recv_count, call.recv_type, call.root = a, b, c, d
    cdef int code = serve(&call)
    if code != NOT_SERVED:
        return code
    return left_to_mpi(&call, (<mpi_5> function_of_mpi(&call))(a, b, c, d, e))


# send, recv, count, type, op, comm
cdef inline int reduction_form(int function, bint wide, word a, word b, word c, word d, word e,
                               word f) noexcept nogil:
    cdef Arguments call = call_of(function, wide, f)
    call.send, call.recv, call.recv_count, call.recv_type, call.op = a, b, c, d, e
    cdef int code = serve(&call)
    if code != NOT_SERVED:
        return code
    return left_to_mpi(&call, (<mpi_6> function_of_mpi(&call))(a, b, c, d, e, f))


cdef inline int reduce_form(bint wide, word a, word b, word c, word d, word e, word f,
                            word g) noexcept nogil:
    cdef Arguments call = call_of(REDUCE, wide, g)
    call.send, call.recv, call.recv_count, call.recv_type, call.op, call.root = a, b, c, d, e, f
    cdef int code = serve(&call)
    if code != NOT_SERVED:
        return code
    return left_to_mpi(&call, (<mpi_7> function_of_mpi(&call))(a, b, c, d, e, f, g))


# send, count, type, recv, count, type, comm
cdef inline int equal_form(int function, bint wide, word a, word b, word c, word d, word e, word f,
                           word g) noexcept nogil:
    cdef Arguments call = call_of(function, wide, g)
    call.send, call.send_count, call.send_type = a, b, c
    call.recv, call.recv_count, call.recv_type = d, e, f
    cdef int code = serve(&call)
    if code != NOT_SERVED:
        return code
    return left_to_mpi(&call, (<mpi_7> function_of_mpi(&call))(a, b, c, d, e, f, g))


cdef inline int rooted_form(int function, bint wide, word a, word b, word c, word d, word e,
                            word f, word g, word h) noexcept nogil:
    cdef Arguments call = call_of(function, wide, h)
    call.send, call.send_count, call.send_type = a, b, c
    call.recv, call.recv_count, call.recv_type, call.root = d, e, f, g
    cdef int code = serve(&call)
    if code != NOT_SERVED:
        return code
    return left_to_mpi(&call, (<mpi_8> function_of_mpi(&call))(a, b, c, d, e, f, g, h))


cdef inline int gatherv_form(bint wide, word a, word b, word c, word d, word e, word f, word g,
                             word h, word i) noexcept nogil:
    cdef Arguments call = call_of(GATHERV, wide, i)
    call.send, call.send_count, call.send_type = a, b, c
    call.recv, call.recv_count, call.recv_starts, call.recv_type, call.root = d, e, f, g, h
    cdef int code = serve(&call)
    if code != NOT_SERVED:
        return code
    return left_to_mpi(&call, (<mpi_9> function_of_mpi(&call))(a, b, c, d, e, f, g, h, i))


cdef inline int scatterv_form(bint wide, word a, word b, word c, word d, word e, word f, word g,
                              word h, word i) noexcept nogil:
    cdef Arguments call = call_of(SCATTERV, wide, i)
    call.send, call.send_count, call.send_starts, call.send_type = a, b, c, d
    call.recv, call.recv_count, call.recv_type, call.root = e, f, g, h
    cdef int code = serve(&call)
    if code != NOT_SERVED:
        return code
    return left_to_mpi(&call, (<mpi_9> function_of_mpi(&call))(a, b, c, d, e, f, g, h, i))


cdef inline int allgatherv_form(bint wide, word a, word b, word c, word d, word e, word f, word g,
                                word h) noexcept nogil:
    cdef Arguments call = call_of(ALLGATHERV, wide, h)
    call.send, call.send_count, call.send_type = a, b, c
    call.recv, call.recv_count, call.recv_starts, call.recv_type = d, e, f, g
    cdef int code = serve(&call)
    if code != NOT_SERVED:
        return code
    return left_to_mpi(&call, (<mpi_8> function_of_mpi(&call))(a, b, c, d, e, f, g, h))


cdef inline int alltoallv_form(int function, bint wide, word a, word b, word c, word d, word e,
                               word f, word g, word h, word i) noexcept nogil:
    cdef Arguments call = call_of(function, wide, i)
    call.send, call.send_count, call.send_starts, call.send_type = a, b, c, d
    call.recv, call.recv_count, call.recv_starts, call.recv_type = e, f, g, h
    cdef int code = serve(&call)
    if code != NOT_SERVED:
        return code
    return left_to_mpi(&call, (<mpi_9> function_of_mpi(&call))(a, b, c, d, e, f, g, h, i))
