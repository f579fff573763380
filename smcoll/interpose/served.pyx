"""Blocking collectives that C libraries call: from what C gave to an engine, or to MPI.

A communicator's calls go to MPI until it has had ``AFTER`` of them, an equal number on all its
ranks; then its engine is made. From there on they are carried out by the functions of ``smcoll.h``,
or, where a datatype or an operation is not a plain one, by the methods of a smcoll communicator
(``calls``); again by MPI where that was measured to be faster (``comparison``).

No mpi.h: every argument is a machine word. Handles are 32 bits of it in MPICH and Intel MPI, and a
pointer in Open MPI; an ``int`` is the lower half, and whoever passes the word on passes the ``int``
on. So one function serves the forms with ``int`` counts and those with ``MPI_Count`` (``_c``).
"""

from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_Import
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.limits cimport INT_MAX
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc

from smcoll.base.atomics cimport (
    cpu_pause, load_acquire, monotonic_ns, store_release, try_lock, unlock,
)
from smcoll.base.kernels cimport (
    INSTRUCTIONS_BASELINE, OP_LAND, OP_PROD, OP_SUM, TYPE_BOOL, TYPE_COMPLEX_FLOAT,
    reduction_kernel_for,
)
from smcoll.buffers.buffers cimport code_of_type
from smcoll.comm.c_api cimport (
    SMCOLL_CAPSULE, SMCOLL_IN_PLACE, SMCOLL_USE_MPI, smcoll_api, smcoll_engine,
)
from smcoll.datatype.operations cimport NO_OP, code_of_op
from smcoll.engine.plans cimport SIZE_CLASSES, size_class
from smcoll.interpose.comparison cimport (
    CallClass, CallsFromC, decide_side, is_compared, is_for_mpi, is_one_class,
)
from smcoll.interpose.functions cimport (
    ALLGATHER, ALLGATHERV, ALLREDUCE, ALLTOALLV, ALLTOALLW, BARRIER, BCAST, EXSCAN, FUNCTIONS,
    GATHER, GATHERV, REDUCE, REDUCE_SCATTER, SCAN, SCATTER, SCATTERV, SUCCESS, Arguments, by_mpi,
    mpi, word,
)

from smcoll.interpose.functions import NAMES

cdef extern from "Python.h":
    int Py_IsInitialized() noexcept nogil

cdef enum:
    BUCKETS = 1024             # of handles; a power of two
    # What `serve` returns besides MPI's codes.
    NOT_SERVED = -1            # MPI is to carry the call out
    NOT_PLAIN = -2             # a method of Python's

# Calls of a communicator before its engine is made: that takes some ms, and a short call gains a
# microsecond or two. A communicator of a few calls shall not pay for it. A guess, not measured.
AFTER = 100


# What is known of a communicator's handle.
cdef struct Entry:
    uintptr_t comm
    Entry *next
    Entry *next_free           # of those that are not in use
    int rank, size
    int64_t calls              # so far, all left to MPI, until the engine is made
    bint decided
    int failure                # code of the error that making the engine ended in, here
    int in_use                 # a call without the GIL is on its way
    bint took_part             # the last call reached the other ranks
    PyObject *python           # the smcoll communicator, once decided; NULL: all calls are MPI's
    smcoll_engine *engine
    CallClass *classes         # FUNCTIONS x SIZE_CLASSES; NULL: its calls are not compared


# A predefined datatype or operation.
cdef struct Basic:
    uintptr_t handle
    size_t size                # bytes of an element, without holes
    int code                   # of the kernels' types or operations, or -1
    uint64_t ops               # a type's: bits of the operations that MPI was seen to take for it


cdef bint _active = False
cdef uint64_t _ready = 0
cdef const smcoll_api *_api
cdef uintptr_t _handle_bits
cdef uintptr_t _null_comm
cdef word _in_place
cdef int64_t _after
cdef int _keyval
cdef Entry *_buckets[BUCKETS]
cdef int _table_is_locked = 0
cdef Entry *_free_entries = NULL
cdef Basic _types[256]                 # open addressing; size 0: free
cdef Basic _ops[64]
cdef uint64_t _left[FUNCTIONS]         # calls that MPI carried out,
cdef uint64_t _served[FUNCTIONS]       # and those that it did not
cdef word _double, _sum, _null_type
cdef int _truncated


# ---------------------------------------------------------------------- communicators

cdef inline int bucket_of(uintptr_t handle) noexcept nogil:
    return <int> ((handle ^ handle >> 6 ^ handle >> 16) & (BUCKETS - 1))


cdef void lock_table() noexcept nogil:
    while not try_lock(&_table_is_locked):
        cpu_pause()


cdef Entry *find(uintptr_t comm) noexcept nogil:
    """The communicator's entry, if it has one. Without a lock: what is found is right.

    Pairs with the release in ``enter``. An entry's memory is used again for other entries only, so
    who walks along while another thread frees its communicator may come into another list and find
    nothing, never what is no entry.
    """
    cdef Entry *entry = first_of(comm)
    while entry != NULL and entry.comm != comm:
        entry = <Entry *> load_acquire(<const uint64_t *> &entry.next)
    return entry


cdef inline Entry *first_of(uintptr_t comm) noexcept nogil:
    return <Entry *> load_acquire(<const uint64_t *> &_buckets[bucket_of(comm)])


cdef Entry *enter(uintptr_t comm) noexcept nogil:
    """A new entry; NULL where there is nothing to serve: no communicator, or no memory."""
    cdef Entry *entry
    cdef int inter = 0
    lock_table()
    entry = find(comm)         # for sure: nobody changes the lists
    if entry == NULL:
        entry = _free_entries
        if entry != NULL:
            take_free()
    unlock(&_table_is_locked)
    if entry != NULL and entry.comm == comm:
        return entry           # by another thread meanwhile
    if entry == NULL:
        entry = <Entry *> calloc(1, sizeof(Entry))
    if entry == NULL:
        return NULL
    # An attribute ends with the communicator, whoever frees it: handles are used again.
    if (mpi.test_inter(comm, &inter) != SUCCESS or mpi.comm_size(comm, &entry.size) != SUCCESS
            or mpi.comm_rank(comm, &entry.rank) != SUCCESS
            or mpi.set_attr(comm, _keyval, entry) != SUCCESS):
        lock_table()
        give_back(entry)
        unlock(&_table_is_locked)
        return NULL
    entry.decided = inter or entry.size == 1
    entry.calls = 0
    entry.failure = SUCCESS
    entry.in_use = 0
    entry.python = NULL
    entry.engine = NULL
    entry.classes = NULL
    lock_table()
    store_release(<uint64_t *> &entry.next, <uint64_t> _buckets[bucket_of(comm)])
    store_release(<uint64_t *> &entry.comm, comm)
    store_release(<uint64_t *> &_buckets[bucket_of(comm)], <uint64_t> entry)
    unlock(&_table_is_locked)
    return entry


cdef void take_free() noexcept nogil:
    global _free_entries
    _free_entries = _free_entries.next_free


cdef void give_back(Entry *entry) noexcept nogil:
    global _free_entries
    entry.comm = _null_comm
    entry.next_free = _free_entries
    _free_entries = entry


cdef int forget(word comm, int keyval, void *attribute, void *extra) noexcept nogil:
    """MPI deletes the attribute: the communicator is being freed."""
    cdef Entry *entry = <Entry *> attribute
    cdef Entry **link = &_buckets[bucket_of(entry.comm)]
    cdef PyObject *python = entry.python
    lock_table()
    while link[0] != NULL and link[0] != entry:
        link = &link[0].next
    if link[0] != NULL:
        store_release(<uint64_t *> link, <uint64_t> entry.next)
    give_back(entry)
    unlock(&_table_is_locked)
    # A signal handler may free a communicator in the midst of a call, which needs the engine to its
    # end: that reference is never given up.
    if python != NULL and not entry.in_use and Py_IsInitialized():
        with gil:
            Py_XDECREF(python)
    return SUCCESS


cdef int not_copied(word comm, int keyval, void *extra, void *value, void *copy,
                    int *flag) noexcept nogil:
    flag[0] = 0
    return SUCCESS


cdef void decide(Entry *entry) noexcept with gil:
    """Make the communicator's engine, collectively; where that fails, all its calls do."""
    from smcoll.interpose import calls

    cdef CallsFromC from_c = None
    entry.decided = True
    try:
        comm, engine = calls.accelerated(entry.comm)
        if engine is not None and engine.config.learn == "on":
            from_c = CallsFromC(engine.config.named)
            engine.calls_from_c = from_c
    except BaseException as error:
        entry.failure = calls.code_of(error)
        return
    if engine is not None:
        Py_INCREF(comm)
        entry.python = <PyObject *> comm
        # Kept alive by the communicator, as what the engine keeps.
        entry.engine = <smcoll_engine *> <PyObject *> engine
        if from_c is not None:
            entry.classes = &from_c.classes[0][0]


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


# ---------------------------------------------------------------------- types and operations

cdef Basic *look_up(Basic *table, size_t slots, uintptr_t handle) noexcept nogil:
    """Where the handle is, or where there is room for it."""
    cdef size_t i = (handle ^ handle >> 5 ^ handle >> 12) & (slots - 1)
    while table[i].size != 0 and table[i].handle != handle:
        i = (i + 1) & (slots - 1)
    return &table[i]


cdef inline Basic *type_of(word handle) noexcept nogil:
    return look_up(_types, 256, <uintptr_t> handle & _handle_bits)


cdef inline Basic *op_of(word handle) noexcept nogil:
    return look_up(_ops, 64, <uintptr_t> handle & _handle_bits)


# ---------------------------------------------------------------------- one call

cdef inline int64_t count_of(const Arguments *call, word count) noexcept nogil:
    return count if call.wide else <int> count


cdef inline int64_t item(const Arguments *call, word array, int i) noexcept nogil:
    return (<const int64_t *> array)[i] if call.wide else (<const int *> array)[i]


cdef int carry_out(const Arguments *call) noexcept nogil:
    """Through shared memory or by MPI, whichever all ranks agree on: MPI's return value."""
    cdef Entry *entry = NULL
    cdef CallClass *kind
    cdef int code
    if _active and (load_acquire(&_ready) or get_ready()):
        entry = entry_of(<uintptr_t> call.comm & _handle_bits)
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
    if comm == _null_comm:
        return NULL
    entry = find(comm)
    return enter(comm) if entry == NULL else entry


cdef int left_to_mpi(const Arguments *call) noexcept nogil:
    _left[call.function] += 1
    return by_mpi(call)


cdef int serve(Entry *entry, const Arguments *call) noexcept nogil:
    """Through shared memory; what can't be done there, by MPI."""
    cdef int code = serve_plain(entry, call)
    entry.took_part = code == SUCCESS or code == _truncated
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
    cdef int function = call.function
    cdef word handle = call.recv_type
    cdef int64_t count
    cdef Basic *basic
    cdef int size
    if entry.classes == NULL:
        return NULL
    if is_one_class(function):
        return &entry.classes[function * SIZE_CLASSES]
    if function == ALLGATHERV or function == REDUCE_SCATTER:
        count = total_count(entry, call)
    else:
        count = count_of(call, call.recv_count)
    if function == GATHER or function == SCATTER:
        # Who is not the root knows its own side only.
        if (entry.rank == <int> call.root) != (function == GATHER):
            handle, count = call.send_type, count_of(call, call.send_count)
    if count == 0 and function < REDUCE:
        return &entry.classes[function * SIZE_CLASSES]
    basic = type_of(handle)
    size = <int> basic.size
    if function >= REDUCE:
        if size == 0 or not gives_the_same_bits(entry, basic.code, op_of(call.op)):
            return NULL
    elif size == 0:
        if (<uintptr_t> handle & _handle_bits) == <uintptr_t> _null_type or (
                mpi.type_size(handle, &size) != SUCCESS):
            return NULL        # MPI says what is wrong
    # MPI_Type_size tells no more than an int: beyond, ranks with other types would not agree.
    if count < 0 or size < 0 or count > 0 and size > INT_MAX // count:
        return NULL
    count *= size
    if function == ALLGATHERV or function == REDUCE_SCATTER:
        # Divided as bytes: counts differ where ranks describe the same data by other types.
        count //= entry.size
    return &entry.classes[function * SIZE_CLASSES + size_class(count)]


cdef int64_t total_count(Entry *entry, const Arguments *call) noexcept nogil:
    """Of what all ranks together receive; negative: more than an int counts."""
    cdef int64_t total = 0, count
    cdef int rank
    for rank in range(entry.size):
        count = item(call, call.recv_count, rank)
        if count < 0 or count > INT_MAX:
            return -1
        total += count
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
    return mpi.error_class(code, &kind) == SUCCESS and kind == _truncated


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
    if kind.calls == calls or entry.comm != <uintptr_t> call.comm & _handle_bits:
        return code            # it did not reach the others, or a signal handler freed it
    kind.turn += 1
    if kind.turn % kind.block == 0:
        failed = by_mpi(&barrier)
        kind.taken[side] = monotonic_ns() - kind.began
    if kind.turn == 2 * kind.block and failed == SUCCESS:
        own[0], own[1] = kind.taken[0], kind.taken[1]
        together.send, together.recv, together.recv_count = <word> own, <word> of_all, 2
        together.recv_type, together.op = _double, _sum
        failed = by_mpi(&together)
        if failed == SUCCESS:
            decide_side(kind, of_all, ranks)
    if failed != SUCCESS:
        # Others may have drawn a conclusion.
        entry.failure = failed
        return failed
    return code


cdef int serve_plain(Entry *entry, const Arguments *call) noexcept nogil:
    """Predefined types and operations that the kernels know.

    SUCCESS, an error code, NOT_PLAIN, or NOT_SERVED: where all ranks agree on that, or where the
    arguments are wrong.
    """
    cdef int function = call.function
    if function == BARRIER:
        return ended(_api.barrier(entry.engine))
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
    return _api.bcast(entry.engine, <void *> call.recv, <size_t> count * basic.size,
                      <int> call.root)


cdef inline bint is_rank(Entry *entry, word root) noexcept nogil:
    return 0 <= <int> root < entry.size


cdef inline const void *sent(const Arguments *call) noexcept nogil:
    return SMCOLL_IN_PLACE if call.send == _in_place else <const void *> call.send


cdef int reduction(Entry *entry, const Arguments *call) noexcept nogil:
    cdef Basic *basic = type_of(call.recv_type)
    cdef Basic *op = op_of(call.op)
    cdef int64_t count = 0
    cdef bint receives = call.function != REDUCE or entry.rank == <int> call.root
    if call.function != REDUCE_SCATTER:
        count = count_of(call, call.recv_count)
        if count < 0 or not is_rank(entry, call.root) or not receives and call.send == _in_place:
            return NOT_SERVED  # MPI says what is wrong
    if basic.size == 0 or op.size == 0 or not basic.ops >> op.code & 1:
        return NOT_PLAIN
    if call.function == REDUCE_SCATTER:
        return reduce_scatter(entry, call, basic.code, op.code)
    if count > 0 and (call.send == 0 or receives and call.recv == 0):
        return NOT_SERVED
    if call.function == ALLREDUCE:
        return _api.allreduce(entry.engine, sent(call), <void *> call.recv, count, basic.code,
                              op.code)
    if call.function == REDUCE:
        return _api.reduce(entry.engine, sent(call), <void *> call.recv, count, basic.code,
                           op.code, <int> call.root)
    if call.function == SCAN:
        return _api.scan(entry.engine, sent(call), <void *> call.recv, count, basic.code, op.code)
    if call.function == EXSCAN:
        return _api.exscan(entry.engine, sent(call), <void *> call.recv, count, basic.code,
                           op.code)
    return _api.reduce_scatter_block(entry.engine, sent(call), <void *> call.recv, count,
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
    code = _api.reduce_scatter(entry.engine, sent(call), <void *> call.recv, counts, type, op)
    free(counts)
    return code


cdef int movement(Entry *entry, const Arguments *call) noexcept nogil:
    cdef int function = call.function
    cdef bint rooted = function <= SCATTERV, scatters = function in (SCATTER, SCATTERV)
    cdef bint at_root = not rooted or entry.rank == <int> call.root
    cdef Basic *send = type_of(call.send_type)
    cdef Basic *recv = type_of(call.recv_type)
    cdef bint sends = (at_root or not scatters) and call.send != _in_place
    cdef bint receives = (at_root or scatters) and call.recv != _in_place
    cdef int64_t send_count, recv_count
    cdef void *to = SMCOLL_IN_PLACE if call.recv == _in_place else <void *> call.recv
    if rooted and (not is_rank(entry, call.root) or not at_root and (
            call.recv if scatters else call.send) == _in_place):
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
        return _api.gather(entry.engine, sent(call), to, recv_count if at_root else send_count,
                           <int> call.root)
    if function == SCATTER:
        return _api.scatter(entry.engine, sent(call), to, send_count if at_root else recv_count,
                            <int> call.root)
    if function == ALLGATHER:
        return _api.allgather(entry.engine, sent(call), to, recv_count)
    return _api.alltoall(entry.engine, sent(call), to, recv_count)


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
            code = _api.scatterv(entry.engine, <const void *> call.send, lengths, starts, to, one,
                                 <int> call.root)
    elif function == ALLTOALLV:
        if measure(call, size, call.recv_count, call.recv_starts, recv_size, lengths, starts) and (
                call.send == _in_place or measure(
                    call, size, call.send_count, call.send_starts, send_size, lengths + size,
                    starts + size)):
            code = _api.alltoallv(entry.engine, sent(call), lengths + size, starts + size, to,
                                  lengths, starts)
    else:
        one = count_of(call, call.send_count) * <int64_t> send_size
        if (not at_root or measure(call, size, call.recv_count, call.recv_starts, recv_size,
                                   lengths, starts)) and (one >= 0 or call.send == _in_place):
            if function == GATHERV:
                code = _api.gatherv(entry.engine, sent(call), one, to, lengths, starts,
                                    <int> call.root)
            else:
                code = _api.allgatherv(entry.engine, sent(call), one, to, lengths, starts)
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


cdef int serve_any(Entry *entry, const Arguments *call) noexcept with gil:
    """By the communicator's method, which takes whatever MPI takes."""
    from smcoll.interpose import calls

    cdef int function = call.function, size = entry.size
    cdef bint at_root = function > SCATTERV and function != REDUCE or (
        entry.rank == <int> call.root)
    cdef bint has_vectors = function in (GATHERV, SCATTERV, ALLGATHERV, ALLTOALLV, ALLTOALLW)
    cdef bint many = function == ALLTOALLV or function == ALLTOALLW
    cdef Basic *basic
    cdef Basic *op
    engine = (<object> entry.python).engine
    before = engine.calls
    try:
        given = calls.Given(
            root=<int> call.root, at_root=at_root, in_place=<size_t> _in_place,
            send=<size_t> call.send, recv=<size_t> call.recv,
            op=<uintptr_t> call.op & _handle_bits,
            send_types=None if call.send == _in_place else types(call, call.send_type, function,
                                                                 size),
            recv_types=types(call, call.recv_type, function, size),
            send_counts=numbers(call, call.send_count, size, many and call.send != _in_place or (
                function == SCATTERV and at_root)),
            recv_counts=numbers(call, call.recv_count, size, many or function == ALLGATHERV or (
                function == GATHERV and at_root) or function == REDUCE_SCATTER),
            send_starts=numbers(call, call.send_starts, size, call.send_starts != 0 and (
                call.send != _in_place) and at_root and has_vectors),
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


cdef object types(const Arguments *call, word value, int function, int size):
    """A datatype's handle, or those of all ranks; None where an Alltoallw has none."""
    cdef int i
    if function != ALLTOALLW:
        return <uintptr_t> value & _handle_bits
    if value == 0:
        return None
    if _handle_bits >> 32:
        return [(<const uintptr_t *> value)[i] for i in range(size)]
    return [(<const unsigned int *> value)[i] for i in range(size)]


cdef void tell_error(Entry *entry) noexcept with gil:
    """MPI knows the code of an error of smcoll's, but not its sentence."""
    from smcoll.interpose import calls

    cdef char text[2000]
    _api.error(entry.engine, text, sizeof(text))
    calls.tell(text.decode(errors="replace"))


# ---------------------------------------------------------------------- setting up

cdef bint get_ready() noexcept with gil:
    """In the first call, when MPI is initialised for sure: learn its handles."""
    global _ready, _active, _api, _handle_bits, _null_comm, _in_place
    global _double, _sum, _null_type, _truncated
    from mpi4py import MPI

    from smcoll.interpose import calls

    cdef Basic *basic
    cdef size_t size
    cdef int code
    if not calls.first.acquire():
        return False
    try:
        if _ready:
            return True        # by another thread, meanwhile
        _api = <const smcoll_api *> PyCapsule_Import(SMCOLL_CAPSULE, 0)
        _handle_bits = <uintptr_t> -1 if MPI._sizeof(MPI.Comm) == 8 else 0xFFFFFFFF
        _null_comm = <uintptr_t> handle_of(MPI.COMM_NULL)
        _in_place = <word> <Py_ssize_t> int(MPI.IN_PLACE)
        _double, _sum = handle_of(MPI.DOUBLE), handle_of(MPI.SUM)
        _null_type = handle_of(MPI.DATATYPE_NULL)
        _truncated = MPI.ERR_TRUNCATE
        for datatype in calls.predefined(MPI.Datatype):
            if datatype != MPI.DATATYPE_NULL and calls.is_dense(datatype):
                size, code = datatype.Get_size(), code_of_type(datatype)
                basic = type_of(handle_of(datatype))
                basic.handle, basic.size, basic.code = handle_of(datatype), size, code
        for op in calls.predefined(MPI.Op):
            code = code_of_op(op)
            if op != MPI.OP_NULL and code != NO_OP:
                basic = op_of(handle_of(op))
                basic.handle, basic.size, basic.code = handle_of(op), 1, code
        if mpi.create_keyval(<void *> not_copied, <void *> forget, &_keyval, NULL) != SUCCESS:
            raise MPI.Exception(MPI.ERR_KEYVAL)
        store_release(&_ready, 1)
    except BaseException as error:
        calls.tell(f"C libraries use MPI ({error!r})")
        _active = False
        return False
    finally:
        calls.first.release()
    return True


cdef word handle_of(mpi_object):
    return <word> (<uintptr_t> (mpi_object.handle & 0xFFFFFFFFFFFFFFFF) & _handle_bits)


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
