from smcoll.interpose.functions cimport (
    ALLGATHERV, BCAST, GATHERV, REDUCE, SCATTERV, Arguments, word,
)


# Through shared memory or by MPI: MPI's return value.
cdef int carry_out(const Arguments *call) noexcept nogil


cdef inline Arguments call_of(int function, bint wide, word comm) noexcept nogil:
    cdef Arguments call
    call.function = function
    call.wide = wide
    call.comm = comm
    call.send = call.send_count = call.send_starts = call.send_type = 0
    call.recv = call.recv_count = call.recv_starts = call.recv_type = 0
    call.op = call.root = 0
    return call


# One function for each list of arguments: buffer, count, type, root, comm
cdef inline int bcast_form(bint wide, word a, word b, word c, word d, word e) noexcept nogil:
    cdef Arguments call = call_of(BCAST, wide, e)
    call.recv, call.recv_count, call.recv_type, call.root = a, b, c, d
    return carry_out(&call)


# send, recv, count, type, op, comm
cdef inline int reduction_form(int function, bint wide, word a, word b, word c, word d, word e,
                               word f) noexcept nogil:
    cdef Arguments call = call_of(function, wide, f)
    call.send, call.recv, call.recv_count, call.recv_type, call.op = a, b, c, d, e
    return carry_out(&call)


cdef inline int reduce_form(bint wide, word a, word b, word c, word d, word e, word f,
                            word g) noexcept nogil:
    cdef Arguments call = call_of(REDUCE, wide, g)
    call.send, call.recv, call.recv_count, call.recv_type, call.op, call.root = a, b, c, d, e, f
    return carry_out(&call)


# send, count, type, recv, count, type, comm
cdef inline int equal_form(int function, bint wide, word a, word b, word c, word d, word e, word f,
                           word g) noexcept nogil:
    cdef Arguments call = call_of(function, wide, g)
    call.send, call.send_count, call.send_type = a, b, c
    call.recv, call.recv_count, call.recv_type = d, e, f
    return carry_out(&call)


cdef inline int rooted_form(int function, bint wide, word a, word b, word c, word d, word e,
                            word f, word g, word h) noexcept nogil:
    cdef Arguments call = call_of(function, wide, h)
    call.send, call.send_count, call.send_type = a, b, c
    call.recv, call.recv_count, call.recv_type, call.root = d, e, f, g
    return carry_out(&call)


cdef inline int gatherv_form(bint wide, word a, word b, word c, word d, word e, word f, word g,
                             word h, word i) noexcept nogil:
    cdef Arguments call = call_of(GATHERV, wide, i)
    call.send, call.send_count, call.send_type = a, b, c
    call.recv, call.recv_count, call.recv_starts, call.recv_type, call.root = d, e, f, g, h
    return carry_out(&call)


cdef inline int scatterv_form(bint wide, word a, word b, word c, word d, word e, word f, word g,
                              word h, word i) noexcept nogil:
    cdef Arguments call = call_of(SCATTERV, wide, i)
    call.send, call.send_count, call.send_starts, call.send_type = a, b, c, d
    call.recv, call.recv_count, call.recv_type, call.root = e, f, g, h
    return carry_out(&call)


cdef inline int allgatherv_form(bint wide, word a, word b, word c, word d, word e, word f, word g,
                                word h) noexcept nogil:
    cdef Arguments call = call_of(ALLGATHERV, wide, h)
    call.send, call.send_count, call.send_type = a, b, c
    call.recv, call.recv_count, call.recv_starts, call.recv_type = d, e, f, g
    return carry_out(&call)


cdef inline int alltoallv_form(int function, bint wide, word a, word b, word c, word d, word e,
                               word f, word g, word h, word i) noexcept nogil:
    cdef Arguments call = call_of(function, wide, i)
    call.send, call.send_count, call.send_starts, call.send_type = a, b, c, d
    call.recv, call.recv_count, call.recv_starts, call.recv_type = e, f, g, h
    return carry_out(&call)
