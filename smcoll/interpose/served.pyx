"""Blocking collectives that C libraries call: from what C gave to an engine, or to MPI.

A communicator's calls go to MPI until it has had ``AFTER`` of them, an equal number on all its
ranks; then its engine is made. From there on they are carried out by the functions of ``smcoll.h``,
(``plain``) or, where a datatype or an operation is not a plain one, by the methods of a smcoll
communicator (``general``); again by MPI where that was measured to be faster (``comparison``).

No mpi.h: every argument is a machine word. Handles are 32 bits of it in MPICH and Intel MPI, and a
pointer in Open MPI; an ``int`` is the lower half, and whoever passes the word on passes the ``int``
on. So one function serves the forms with ``int`` counts and those with ``MPI_Count`` (``_c``).
"""

from libc.limits cimport INT_MAX
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from smcoll.base.atomics cimport load_acquire, monotonic_ns, store_release
from smcoll.base.kernels cimport OP_LAND, OP_PROD, OP_SUM, TYPE_BOOL, TYPE_COMPLEX_FLOAT
from smcoll.engine.plans cimport SIZE_CLASSES, size_class
from smcoll.interpose.comparison cimport (
    CallClass, decide_side, is_compared, is_for_mpi, is_one_class,
)
from smcoll.interpose.entries cimport Entry, decide, enter, find
from smcoll.interpose.functions cimport (
    ALLGATHERV, ALLREDUCE, BARRIER, FUNCTIONS, GATHER, REDUCE, REDUCE_SCATTER, SCATTER, SUCCESS,
    Arguments, by_mpi, mpi, word,
)
from smcoll.interpose.general cimport serve_any, tell_error
from smcoll.interpose.handles cimport Basic, handle_of, known, op_of, type_of
from smcoll.interpose.plain cimport NOT_PLAIN, NOT_SERVED, count_of, item, serve_plain

from smcoll.interpose import entries, handles, plain
from smcoll.interpose.functions import NAMES

# Calls of a communicator before its engine is made: that takes some ms, and a short call gains a
# microsecond or two. A communicator of a few calls shall not pay for it. A guess, not measured.
AFTER = 100


cdef bint _active = False
cdef uint64_t _ready = 0
cdef int64_t _after
cdef uint64_t _left[FUNCTIONS]         # calls that MPI carried out,
cdef uint64_t _served[FUNCTIONS]       # and those that it did not


def expect(comm):
    """Python has made this communicator's engine, on all ranks: the next call from C uses it."""
    cdef uintptr_t handle
    cdef Entry *entry
    if _active and (load_acquire(&_ready) or get_ready()):
        handle = handle_of(comm)
        entry = find(handle)
        if entry == NULL:
            entry = enter(handle)
        if entry != NULL:
            entry.calls = _after


# ---------------------------------------------------------------------- one call

cdef int carry_out(const Arguments *call) noexcept nogil:
    """Through shared memory or by MPI, whichever all ranks agree on: MPI's return value."""
    cdef Entry *entry = NULL
    cdef CallClass *kind
    cdef int code
    if _active and (load_acquire(&_ready) or get_ready()):
        entry = entry_of(<uintptr_t> call.comm & known.bits)
    if entry != NULL and not entry.decided:
        if entry.calls >= _after:
            decide(entry)
        else:
            code = left_to_mpi(call)
            # A call that MPI refused here did not reach the others: it does not count.
            entry.calls += code == SUCCESS
            return code
    if entry == NULL or entry.engine == NULL and entry.failure == SUCCESS:
        return left_to_mpi(call)
    if entry.failure != SUCCESS:
        mpi.call_errhandler(call.comm, entry.failure)
        return entry.failure
    entry.in_use = True
    kind = class_of(entry, call)
    if kind == NULL:
        code = serve(entry, call)
    elif is_compared(kind):
        code = compare(entry, call, kind)
    else:
        code = on_side(entry, call, kind, kind.is_mpis)
    entry.in_use = False
    return code


cdef inline Entry *entry_of(uintptr_t comm) noexcept nogil:
    """What is known of the communicator; NULL: all its calls are MPI's."""
    cdef Entry *entry
    if comm == known.null_comm:
        return NULL
    entry = find(comm)
    return enter(comm) if entry == NULL else entry


cdef int left_to_mpi(const Arguments *call) noexcept nogil:
    _left[call.function] += 1
    return by_mpi(call)


cdef int serve(Entry *entry, const Arguments *call) noexcept nogil:
    """Through shared memory; what can't be done there, by MPI."""
    cdef int code = serve_plain(entry, call)
    entry.took_part = code == SUCCESS or code == known.truncated
    if code == NOT_PLAIN:
        code = serve_any(entry, call)
    elif code > SUCCESS:
        tell_error(entry)
    if code == NOT_SERVED:
        code = left_to_mpi(call)
        entry.took_part = code == SUCCESS or is_truncation(code)
        return code
    _served[call.function] += 1
    if code > SUCCESS:
        # It returns where the communicator's handler does.
        mpi.call_errhandler(call.comm, code)
    return code


# ---------------------------------------------------------------------- beside MPI's own

cdef CallClass *class_of(Entry *entry, const Arguments *call) noexcept nogil:
    """With which calls this one is compared, the same on all ranks. NULL: with none.

    None where the two ways could give a reduction different bits (protocol rule 7).
    """
    cdef int function = call.function, size
    cdef word handle = call.recv_type
    cdef int64_t count, parts = 1
    cdef Basic *basic
    if entry.classes == NULL:
        return NULL
    if is_one_class(function):
        return &entry.classes[function * SIZE_CLASSES]
    if function == ALLGATHERV or function == REDUCE_SCATTER:
        # What all ranks receive together, divided as bytes: one rank's counts are not another's
        # where they describe the same data by other types.
        count, parts = total_count(entry, call), entry.size
    elif function == GATHER or function == SCATTER:
        # Who is not the root knows its own side only.
        if (entry.rank == <int> call.root) == (function == GATHER):
            count = count_of(call, call.recv_count)
        else:
            handle, count = call.send_type, count_of(call, call.send_count)
    else:
        count = count_of(call, call.recv_count)
    if count == 0 and function < REDUCE:
        return &entry.classes[function * SIZE_CLASSES]
    basic = type_of(handle)
    size = <int> basic.size
    if function >= REDUCE:
        if size == 0 or not gives_the_same_bits(entry, basic.code, op_of(call.op)):
            return NULL
    elif size == 0:
        if (<uintptr_t> handle & known.bits) == <uintptr_t> known.null_type or (
                mpi.type_size(handle, &size) != SUCCESS):
            return NULL        # MPI says what is wrong
    # MPI_Type_size tells no more than an int: beyond, ranks with other types would not agree.
    if count < 0 or size < 0 or count > 0 and size > INT_MAX // count:
        return NULL
    return &entry.classes[function * SIZE_CLASSES + size_class(count * size // parts)]


cdef int64_t total_count(Entry *entry, const Arguments *call) noexcept nogil:
    """Of what all ranks receive; not exact beyond an int, which no class holds; -1: not valid."""
    cdef int64_t total = 0, count
    cdef int rank
    for rank in range(entry.size):
        count = item(call, call.recv_count, rank)
        if count < 0:
            return -1
        total = min(total + min(count, <int64_t> INT_MAX + 1), <int64_t> INT_MAX + 1)
    return total


cdef inline bint gives_the_same_bits(Entry *entry, int type, const Basic *op) noexcept nogil:
    """Whether it does not matter in which order the ranks' operands are combined. (The greater of a
    number and a NaN depends on it.)"""
    if op.size == 0 or type < 0:
        return False
    return (type <= TYPE_BOOL or OP_LAND <= op.code
            or entry.size == 2 and (op.code == OP_SUM or op.code == OP_PROD
                                    and type < TYPE_COMPLEX_FLOAT))


cdef inline int on_side(Entry *entry, const Arguments *call, CallClass *kind,
                        bint is_mpis) noexcept nogil:
    """Count the call, too: those that all ranks have been in."""
    cdef int code
    if is_mpis:
        code = by_mpi(call)
        kind.by_mpi += 1
        entry.took_part = code == SUCCESS or is_truncation(code)
    else:
        code = serve(entry, call)
    kind.calls += entry.took_part
    return code


cdef bint is_truncation(int code) noexcept nogil:
    cdef int kind = SUCCESS
    return mpi.error_class(code, &kind) == SUCCESS and kind == known.truncated


cdef int compare(Entry *entry, const Arguments *call, CallClass *kind) noexcept nogil:
    """A call of a comparison."""
    cdef int side = is_for_mpi(kind), failed = SUCCESS
    cdef int64_t calls = kind.calls
    cdef int code
    cdef Arguments barrier = call_of(BARRIER, False, call.comm)
    cdef Arguments together = call_of(ALLREDUCE, False, call.comm)
    cdef double own[2]
    cdef double of_all[2]
    cdef int ranks = entry.size
    if kind.turn % kind.block == 0:
        kind.began = monotonic_ns()
    code = on_side(entry, call, kind, side)
    if kind.calls == calls or entry.comm != <uintptr_t> call.comm & known.bits:
        return code            # it did not reach the others, or a signal handler freed it
    kind.turn += 1
    if kind.turn % kind.block == 0:
        failed = by_mpi(&barrier)
        kind.taken[side] = monotonic_ns() - kind.began
    if kind.turn == 2 * kind.block and failed == SUCCESS:
        own[0], own[1] = kind.taken[0], kind.taken[1]
        together.send, together.recv, together.recv_count = <word> own, <word> of_all, 2
        together.recv_type, together.op = known.double_type, known.sum_op
        failed = by_mpi(&together)
        if failed == SUCCESS:
            decide_side(kind, of_all, ranks)
    if failed != SUCCESS:
        # Others may have drawn a conclusion.
        entry.failure = failed
        return failed
    return code


# ---------------------------------------------------------------------- setting up

cdef bint get_ready() noexcept with gil:
    """In the first call, when MPI is initialised for sure."""
    global _ready, _active
    from smcoll.interpose import calls

    if not calls.first.acquire():
        return False
    try:
        if not _ready:         # by another thread, meanwhile
            plain.find_api()
            handles.learn()
            entries.create_keyval()
            store_release(&_ready, 1)
    except BaseException as error:
        calls.tell(f"C libraries use MPI ({error!r})")
        _active = False
        return False
    finally:
        calls.first.release()
    return True


def set_active(bint active, int64_t after):
    """Serve calls from now on, or leave all to MPI; alike on all ranks."""
    global _active, _after
    _after = after
    _active = active


def calls_left_to_mpi():
    """``{name: number}`` of the calls from C that MPI carried out."""
    return {NAMES[i]: _left[i] for i in range(FUNCTIONS) if _left[i]}


def calls_served():
    """``{name: number}`` of those that went through shared memory."""
    return {NAMES[i]: _served[i] for i in range(FUNCTIONS) if _served[i]}
