"""A call from C with any datatype or operation: by the communicator's method, in Python."""

from libc.stdint cimport uint64_t, uintptr_t

from smcoll.base.kernels cimport INSTRUCTIONS_BASELINE, reduction_kernel_for
from smcoll.interpose.entries cimport Entry
from smcoll.interpose.functions cimport (
    ALLGATHERV, ALLTOALLV, ALLTOALLW, GATHERV, REDUCE, REDUCE_SCATTER, SCATTERV, SUCCESS, Arguments,
    word,
)
from smcoll.interpose.handles cimport Basic, known, op_of, type_of
from smcoll.interpose.plain cimport NOT_SERVED, api, count_of, item

from smcoll.interpose.functions import NAMES


cdef int serve_any(Entry *entry, const Arguments *call) noexcept with gil:
    """SUCCESS, an error code, or NOT_SERVED."""
    from smcoll.interpose import calls

    cdef int function = call.function, size = entry.size
    cdef bint at_root = function > SCATTERV and function != REDUCE or (
        entry.rank == <int> call.root)
    cdef bint has_vectors = function in (GATHERV, SCATTERV, ALLGATHERV, ALLTOALLV, ALLTOALLW)
    cdef bint many = function == ALLTOALLV or function == ALLTOALLW
    cdef bint sends = call.send != known.in_place
    cdef Basic *basic
    cdef Basic *op
    engine = (<object> entry.python).engine
    before = engine.calls
    try:
        given = calls.Given(
            root=<int> call.root, at_root=at_root, in_place=<size_t> known.in_place,
            send=<size_t> call.send, recv=<size_t> call.recv,
            op=<uintptr_t> call.op & known.bits,
            send_types=types(call, call.send_type, size) if sends else None,
            recv_types=types(call, call.recv_type, size),
            send_counts=numbers(call, call.send_count, size, many and sends or (
                function == SCATTERV and at_root)),
            recv_counts=numbers(call, call.recv_count, size, many or function == ALLGATHERV or (
                function == GATHERV and at_root) or function == REDUCE_SCATTER),
            send_starts=numbers(call, call.send_starts, size, call.send_starts != 0 and (
                sends and at_root and has_vectors)),
            recv_starts=numbers(call, call.recv_starts, size, call.recv_starts != 0 and (
                at_root) and has_vectors))
        if not calls.carry_out(NAMES[function], <object> entry.python, given):
            return NOT_SERVED
    except BaseException as error:
        # A signal's may come when the call is complete.
        entry.took_part = engine.calls != before
        return calls.code_of(error)
    entry.took_part = True
    if function >= REDUCE:
        basic, op = type_of(call.recv_type), op_of(call.op)
        if basic.size != 0 and op.size != 0 and basic.code >= 0 and reduction_kernel_for(
                op.code, basic.code, INSTRUCTIONS_BASELINE) != NULL:
            basic.ops |= <uint64_t> 1 << op.code
    return SUCCESS


cdef object numbers(const Arguments *call, word value, int size, bint is_array):
    """A count, or those of all ranks."""
    cdef int i
    if is_array:
        return [item(call, value, i) for i in range(size)]
    return count_of(call, value)


cdef object types(const Arguments *call, word value, int size):
    """A datatype's handle, or those of all ranks; None where an Alltoallw has none."""
    cdef int i
    if call.function != ALLTOALLW:
        return <uintptr_t> value & known.bits
    if value == 0:
        return None
    if known.bits >> 32:
        return [(<const uintptr_t *> value)[i] for i in range(size)]
    return [(<const unsigned int *> value)[i] for i in range(size)]


cdef void tell_error(Entry *entry) noexcept with gil:
    """MPI knows the code of an error of smcoll's, but not its sentence."""
    from smcoll.interpose import calls

    cdef char text[2000]
    api.error(entry.engine, text, sizeof(text))
    calls.tell(text.decode(errors="replace"))
