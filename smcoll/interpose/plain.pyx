"""A call from C with predefined datatypes and operations: the function of smcoll.h, without Python.
"""

from cpython.pycapsule cimport PyCapsule_Import
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from smcoll.comm.c_api cimport SMCOLL_CAPSULE, SMCOLL_IN_PLACE, SMCOLL_USE_MPI, smcoll_api
from smcoll.interpose.functions cimport (
    ALLGATHER, ALLGATHERV, ALLREDUCE, ALLTOALLV, ALLTOALLW, BARRIER, BCAST, EXSCAN, GATHER, GATHERV,
    REDUCE, REDUCE_SCATTER, SCAN, SCATTER, SCATTERV, Arguments, word,
)
from smcoll.interpose.handles cimport Basic, known, op_of, type_of


def find_api():
    """The table of smcoll.h's functions."""
    global api
    api = <const smcoll_api *> PyCapsule_Import(SMCOLL_CAPSULE, 0)


cdef int serve_plain(Entry *entry, const Arguments *call) noexcept nogil:
    """Predefined types and operations that the kernels know.

    SUCCESS, an error code, NOT_PLAIN, or NOT_SERVED: where all ranks agree on that, or where the
    arguments are wrong.
    """
    cdef int function = call.function
    if function == BARRIER:
        return ended(api.barrier(entry.engine))
    if function == BCAST:
        return ended(bcast(entry, call))
    if function >= REDUCE:
        return ended(reduction(entry, call))
    return ended(movement(entry, call))


cdef inline int ended(int code) noexcept nogil:
    """Of a function of smcoll.h, or NOT_PLAIN."""
    return NOT_SERVED if code == SMCOLL_USE_MPI else code


cdef int bcast(Entry *entry, const Arguments *call) noexcept nogil:
    cdef Basic *basic = type_of(call.recv_type)
    cdef int64_t count = count_of(call, call.recv_count)
    if count < 0 or not is_rank(entry, call.root):
        return NOT_SERVED      # MPI says what is wrong
    if basic.size == 0:
        return NOT_PLAIN
    if call.recv == 0 and count > 0:
        return NOT_SERVED
    return api.bcast(entry.engine, <void *> call.recv, <size_t> count * basic.size,
                     <int> call.root)


cdef inline bint is_rank(Entry *entry, word root) noexcept nogil:
    return 0 <= <int> root < entry.size


cdef inline const void *sent(const Arguments *call) noexcept nogil:
    if call.send == known.in_place:
        return SMCOLL_IN_PLACE
    return <const void *> call.send


cdef int reduction(Entry *entry, const Arguments *call) noexcept nogil:
    cdef Basic *basic = type_of(call.recv_type)
    cdef Basic *op = op_of(call.op)
    cdef int64_t count = 0
    cdef bint receives = call.function != REDUCE or entry.rank == <int> call.root
    if call.function != REDUCE_SCATTER:
        count = count_of(call, call.recv_count)
        if count < 0 or not is_rank(entry, call.root) or (
                call.send == known.in_place and not receives):
            return NOT_SERVED  # MPI says what is wrong
    if basic.size == 0 or op.size == 0 or not basic.ops >> op.code & 1:
        return NOT_PLAIN
    if call.function == REDUCE_SCATTER:
        return reduce_scatter(entry, call, basic.code, op.code)
    if count > 0 and (call.send == 0 or receives and call.recv == 0):
        return NOT_SERVED
    if call.function == ALLREDUCE:
        return api.allreduce(entry.engine, sent(call), <void *> call.recv, count, basic.code,
                             op.code)
    if call.function == REDUCE:
        return api.reduce(entry.engine, sent(call), <void *> call.recv, count, basic.code,
                          op.code, <int> call.root)
    if call.function == SCAN:
        return api.scan(entry.engine, sent(call), <void *> call.recv, count, basic.code, op.code)
    if call.function == EXSCAN:
        return api.exscan(entry.engine, sent(call), <void *> call.recv, count, basic.code,
                          op.code)
    return api.reduce_scatter_block(entry.engine, sent(call), <void *> call.recv, count,
                                    basic.code, op.code)


cdef int reduce_scatter(Entry *entry, const Arguments *call, int type, int op) noexcept nogil:
    cdef size_t *counts = <size_t *> malloc(entry.size * sizeof(size_t))
    cdef int rank, code
    if counts == NULL:
        return NOT_PLAIN
    for rank in range(entry.size):
        if item(call, call.recv_count, rank) < 0:
            free(counts)
            return NOT_SERVED
        counts[rank] = item(call, call.recv_count, rank)
    code = api.reduce_scatter(entry.engine, sent(call), <void *> call.recv, counts, type, op)
    free(counts)
    return code


cdef int movement(Entry *entry, const Arguments *call) noexcept nogil:
    cdef int function = call.function
    cdef bint rooted = function <= SCATTERV, scatters = function in (SCATTER, SCATTERV)
    cdef bint at_root = not rooted or entry.rank == <int> call.root
    cdef Basic *send = type_of(call.send_type)
    cdef Basic *recv = type_of(call.recv_type)
    cdef bint sends = (at_root or not scatters) and call.send != known.in_place
    cdef bint receives = (at_root or scatters) and call.recv != known.in_place
    cdef int64_t send_count, recv_count
    cdef void *to = SMCOLL_IN_PLACE if call.recv == known.in_place else <void *> call.recv
    if rooted and (not is_rank(entry, call.root) or not at_root and (
            call.recv if scatters else call.send) == known.in_place):
        return NOT_SERVED      # MPI says what is wrong
    if function == ALLTOALLW or sends and send.size == 0 or receives and recv.size == 0:
        return NOT_PLAIN
    if function in (GATHERV, SCATTERV, ALLGATHERV, ALLTOALLV):
        return vector(entry, call, at_root, send.size, recv.size, to)
    send_count = count_of(call, call.send_count) * <int64_t> send.size
    recv_count = count_of(call, call.recv_count) * <int64_t> recv.size
    if sends and (send_count < 0 or call.send == 0 and send_count > 0) or (
            receives and (recv_count < 0 or call.recv == 0 and recv_count > 0)):
        return NOT_SERVED
    if at_root and sends and receives and send_count != recv_count:
        return NOT_PLAIN
    if function == GATHER:
        return api.gather(entry.engine, sent(call), to, recv_count if at_root else send_count,
                          <int> call.root)
    if function == SCATTER:
        return api.scatter(entry.engine, sent(call), to, send_count if at_root else recv_count,
                           <int> call.root)
    if function == ALLGATHER:
        return api.allgather(entry.engine, sent(call), to, recv_count)
    return api.alltoall(entry.engine, sent(call), to, recv_count)


cdef int vector(Entry *entry, const Arguments *call, bint at_root, size_t send_size,
                size_t recv_size, void *to) noexcept nogil:
    """The forms with a length for each rank."""
    cdef int function = call.function, code = NOT_SERVED, size = entry.size
    cdef size_t *lengths = <size_t *> malloc(2 * size * sizeof(size_t))
    cdef ptrdiff_t *starts = <ptrdiff_t *> malloc(2 * size * sizeof(ptrdiff_t))
    cdef int64_t one
    if lengths == NULL or starts == NULL:
        code = NOT_PLAIN
    elif function == SCATTERV:
        one = count_of(call, call.recv_count) * <int64_t> recv_size
        if (not at_root or measure(call, size, call.send_count, call.send_starts, send_size,
                                   lengths, starts)) and (
                one >= 0 or to == SMCOLL_IN_PLACE):
            code = api.scatterv(entry.engine, <const void *> call.send, lengths, starts, to, one,
                                <int> call.root)
    elif function == ALLTOALLV:
        if measure(call, size, call.recv_count, call.recv_starts, recv_size, lengths, starts) and (
                call.send == known.in_place or measure(
                    call, size, call.send_count, call.send_starts, send_size, lengths + size,
                    starts + size)):
            code = api.alltoallv(entry.engine, sent(call), lengths + size, starts + size, to,
                                 lengths, starts)
    else:
        one = count_of(call, call.send_count) * <int64_t> send_size
        if (not at_root or measure(call, size, call.recv_count, call.recv_starts, recv_size,
                                   lengths, starts)) and (one >= 0 or call.send == known.in_place):
            if function == GATHERV:
                code = api.gatherv(entry.engine, sent(call), one, to, lengths, starts,
                                   <int> call.root)
            else:
                code = api.allgatherv(entry.engine, sent(call), one, to, lengths, starts)
    free(lengths)
    free(starts)
    return code


cdef bint measure(const Arguments *call, int size, word counts, word displacements, size_t unit,
                  size_t *lengths, ptrdiff_t *starts) noexcept nogil:
    """Lengths and places in bytes; False where a count is negative."""
    cdef int rank
    for rank in range(size):
        if item(call, counts, rank) < 0:
            return False
        lengths[rank] = item(call, counts, rank) * unit
        starts[rank] = 0
        if displacements != 0:
            starts[rank] = item(call, displacements, rank) * <ptrdiff_t> unit
    return True
