"""The collectives for other compiled code: the table of functions that ``smcoll.h`` describes.

Each function puts its arguments into a ``Request``; one place carries it out, and makes a code of
what Python would raise.
"""

from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_New
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport strncpy

from smcoll.base.kernels cimport element_size
from smcoll.base.signature cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_ALLREDUCE, COLLECTIVE_ALLTOALL, COLLECTIVE_BARRIER,
    COLLECTIVE_BCAST, COLLECTIVE_EXSCAN, COLLECTIVE_GATHER, COLLECTIVE_REDUCE,
    COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_SCAN, COLLECTIVE_SCATTER,
)
from smcoll.buffers.blocks cimport Blocks, Sides, new_blocks
from smcoll.buffers.buffers cimport Specification, code_of_type
from smcoll.coll.allgather cimport Gathering
from smcoll.coll.reduce_scatter cimport Partition
from smcoll.coll.truncation cimport NOBODY
from smcoll.comm.movement cimport check_truncated, move_rooted, move_to_all
from smcoll.datatype.convertor cimport Convertor, start_convertor
from smcoll.datatype.operations cimport code_of_op
from smcoll.engine.engine cimport Engine
from smcoll.engine.reservation cimport CARRIED_OUT, USE_MPI
from smcoll.sync.team cimport PyThreadState

from mpi4py import MPI

cdef extern from "Python.h":
    ctypedef enum PyGILState_STATE:
        pass
    PyGILState_STATE PyGILState_Ensure() noexcept nogil
    void PyGILState_Release(PyGILState_STATE) noexcept nogil
    PyThreadState *PyGILState_GetThisThreadState() noexcept nogil
    PyThreadState *PyEval_SaveThread() noexcept nogil
    void PyEval_RestoreThread(PyThreadState *) noexcept nogil
    void PyErr_Fetch(PyObject **, PyObject **, PyObject **)
    void PyErr_NormalizeException(PyObject **, PyObject **, PyObject **)
    void Py_XDECREF(PyObject *)
    void PyErr_SetInterrupt()


# One call. Blocks: `lengths` and `starts` of each rank's, NULL where all have `nbytes` and lie one
# behind the other.
cdef struct Request:
    int collective
    const void *send
    void *recv
    size_t nbytes              # that this rank sends, or receives in a Scatter; of each block
    size_t count               # elements, where they are reduced
    const size_t *counts       # of each rank's block in a Reduce_scatter; NULL: `count` each
    int type, op, root
    const size_t *send_lengths
    const ptrdiff_t *send_starts
    const size_t *lengths
    const ptrdiff_t *starts


ctypedef int (*carrier)(Engine engine, const Request *request) noexcept nogil


cdef int run(Engine engine, const Request *request) noexcept nogil:
    cdef PyGILState_STATE state
    cdef PyThreadState *saved
    cdef int code
    if PyGILState_GetThisThreadState() != NULL:
        return run_here(engine, request)
    # A thread that Python has never seen: what is raised needs a place to stay until it is looked
    # at.
    state = PyGILState_Ensure()
    saved = PyEval_SaveThread()
    code = run_here(engine, request)
    PyEval_RestoreThread(saved)
    PyGILState_Release(state)
    return code


cdef int run_here(Engine engine, const Request *request) noexcept nogil:
    # By a pointer that promises nothing about exceptions: -1 says that one is set.
    engine.from_c = True
    cdef int path = (<carrier> carry_out)(engine, request)
    engine.from_c = False
    if path == CARRIED_OUT:
        return SMCOLL_SUCCESS
    if path == USE_MPI:
        engine.call_is_over()
        return SMCOLL_USE_MPI
    return take_error(engine)


cdef int take_error(Engine engine) noexcept with gil:
    """MPI's code for the exception that is set; its text is kept."""
    cdef PyObject *kind = NULL
    cdef PyObject *value = NULL
    cdef PyObject *traceback = NULL
    PyErr_Fetch(&kind, &value, &traceback)
    PyErr_NormalizeException(&kind, &value, &traceback)
    code = MPI.ERR_OTHER
    if value != NULL:
        error = <object> value
        engine.last_error = str(error) or type(error).__name__
        if isinstance(error, MPI.Exception):
            code = error.Get_error_code()
        if isinstance(error, KeyboardInterrupt):
            PyErr_SetInterrupt()       # Python raises it when the caller has returned
    # What PyErr_Fetch gave is ours to give up.
    Py_XDECREF(kind)
    Py_XDECREF(value)
    Py_XDECREF(traceback)
    return code


cdef int carry_out(Engine engine, const Request *request) except -1 nogil:
    cdef int kind = request.collective
    if not 0 <= request.root < engine.size:
        with gil:
            raise MPI.Exception(MPI.ERR_ROOT)
    if kind == COLLECTIVE_BARRIER:
        return engine.barrier_(engine.plans.choose(kind, 0), False)
    if kind == COLLECTIVE_BCAST:
        return engine.bcast_(kind, <char *> request.recv, request.nbytes, request.root,
                             engine.plans.choose(kind, request.nbytes), False)
    if kind == COLLECTIVE_ALLGATHER:
        return gather_for_all(engine, request)
    if kind == COLLECTIVE_ALLTOALL:
        with gil:
            return exchange_blocks(engine, request)
    if kind == COLLECTIVE_GATHER or kind == COLLECTIVE_SCATTER:
        with gil:
            return exchange_with_root(engine, request)
    if engine.kernel_of(request.op, request.type) == NULL:
        with gil:
            raise MPI.Exception(MPI.ERR_OP)
    if kind == COLLECTIVE_REDUCE_SCATTER:
        return reduce_blocks(engine, request)
    return engine.reduction_(
        kind, <const char *> operands(request),
        NULL if kind == COLLECTIVE_REDUCE and engine.rank != request.root
        else <char *> request.recv, request.count,
        request.type, request.op, request.root,
        engine.plans.choose(kind, request.count * element_size(request.type)), False)


cdef inline const void *operands(const Request *request) noexcept nogil:
    if request.send == SMCOLL_IN_PLACE:
        return request.recv
    return request.send


cdef int no_memory() except -1 nogil:
    with gil:
        raise MemoryError


cdef int reduce_blocks(Engine engine, const Request *request) except -1 nogil:
    cdef Partition blocks
    cdef size_t unit = element_size(request.type)
    cdef size_t *begin = <size_t *> malloc((engine.size + 1) * sizeof(size_t))
    cdef int rank, path
    if begin == NULL:
        return no_memory()
    begin[0] = blocks.longest = 0
    for rank in range(engine.size):
        begin[rank + 1] = begin[rank] + unit * (
            request.count if request.counts == NULL else request.counts[rank])
        blocks.longest = max(blocks.longest, begin[rank + 1] - begin[rank])
    blocks.begin = begin
    blocks.in_place = request.send == SMCOLL_IN_PLACE
    # Freed whatever happens: no exception passes a pointer that promises nothing about them.
    path = (<reducer> reduce_partition)(engine, request, &blocks)
    free(begin)
    return path


ctypedef int (*reducer)(Engine, const Request *, const Partition *) noexcept nogil


cdef int reduce_partition(Engine engine, const Request *request,
                          const Partition *blocks) except -1 nogil:
    return engine.reduce_scatter_(
        <const char *> operands(request), <char *> request.recv, blocks, request.type, request.op,
        engine.plans.choose(COLLECTIVE_REDUCE_SCATTER, blocks.begin[engine.size]), False)


cdef inline char *block_of(const Request *request, char *base, const ptrdiff_t *starts,
                           int rank) noexcept nogil:
    return base + (starts[rank] if starts != NULL else
                   <ptrdiff_t> rank * <ptrdiff_t> request.nbytes)


cdef inline size_t length_of(const Request *request, const size_t *lengths,
                             int rank) noexcept nogil:
    return request.nbytes if lengths == NULL else lengths[rank]


cdef int gather_for_all(Engine engine, const Request *request) except -1 nogil:
    cdef Gathering all
    cdef size_t *block = <size_t *> malloc(engine.size * sizeof(size_t))
    cdef Convertor *convertors = <Convertor *> malloc(engine.size * sizeof(Convertor))
    cdef char *to
    cdef int rank, path
    if block == NULL or convertors == NULL:
        free(block)
        free(convertors)
        return no_memory()
    all.block = block
    all.recv = convertors
    all.longest = 0
    all.truncation.sender = NOBODY
    for rank in range(engine.size):
        block[rank] = length_of(request, request.lengths, rank)
        all.longest = max(all.longest, block[rank])
        to = block_of(request, <char *> request.recv, request.starts, rank)
        start_convertor(&convertors[rank], to, NULL, block[rank])
    all.in_place = request.send == SMCOLL_IN_PLACE
    if all.in_place:
        all.send_bytes = block[engine.rank]
        start_convertor(&all.send, convertors[engine.rank].address, NULL, all.send_bytes)
    else:
        all.send_bytes = request.nbytes
        start_convertor(&all.send, <char *> request.send, NULL, request.nbytes)
    path = (<gatherer> allgather)(engine, &all)
    free(block)
    free(convertors)
    if path == CARRIED_OUT and all.truncation.sender != NOBODY:
        with gil:
            check_truncated(&all.truncation)
    return path


ctypedef int (*gatherer)(Engine, Gathering *) noexcept nogil


cdef int allgather(Engine engine, Gathering *all) except -1 nogil:
    return engine.allgather_(all, COLLECTIVE_ALLGATHER,
                             engine.plans.choose(COLLECTIVE_ALLGATHER, all.longest), False)


cdef Blocks blocks_at(Engine engine, const Request *request, char *base, const size_t *lengths,
                      const ptrdiff_t *starts):
    cdef Blocks blocks = new_blocks(engine.size, False)
    cdef int rank
    blocks.contiguous = True
    blocks.base = base
    for rank in range(engine.size):
        blocks.block[rank].address = block_of(request, base, starts, rank)
        blocks.block[rank].nbytes = length_of(request, lengths, rank)
        blocks.total += blocks.block[rank].nbytes
    return blocks


cdef int exchange_blocks(Engine engine, const Request *request) except -1:
    cdef Sides sides = Sides.__new__(Sides)
    sides.blocks = blocks_at(engine, request, <char *> request.recv, request.lengths,
                             request.starts)
    sides.in_place = request.send == SMCOLL_IN_PLACE
    if not sides.in_place:
        sides.sent = blocks_at(engine, request, <char *> request.send, request.send_lengths,
                               request.send_starts)
    return move_to_all(engine, sides)


cdef int exchange_with_root(Engine engine, const Request *request) except -1:
    cdef Sides sides = Sides.__new__(Sides)
    cdef bint scatters = request.collective == COLLECTIVE_SCATTER
    cdef bint at_root = engine.rank == request.root
    cdef char *one = <char *> request.recv if scatters else <char *> request.send
    if at_root:
        sides.blocks = blocks_at(
            engine, request, <char *> request.send if scatters else <char *> request.recv,
            request.send_lengths if scatters else request.lengths,
            request.send_starts if scatters else request.starts)
    sides.in_place = at_root and one == SMCOLL_IN_PLACE
    if not sides.in_place:
        sides.message = Specification.__new__(Specification)
        sides.message.contiguous = True
        sides.message.message.address = one
        sides.message.message.nbytes = request.nbytes
    return move_rooted(engine, request.collective, sides, request.root)


# ---------------------------------------------------------------------- the table

cdef inline Request request_of(int collective, const void *send, void *recv, size_t nbytes,
                               int root) noexcept nogil:
    cdef Request request
    request.collective = collective
    request.send = send
    request.recv = recv
    request.nbytes = nbytes
    request.root = root
    request.counts = request.send_lengths = request.lengths = NULL
    request.send_starts = request.starts = NULL
    return request


cdef inline Request reduction_of(int collective, const void *send, void *recv, size_t count,
                                 int type, int op, int root) noexcept nogil:
    cdef Request request = request_of(collective, send, recv, 0, root)
    request.count = count
    request.type = type
    request.op = op
    return request


cdef int barrier(Engine engine) noexcept nogil:
    cdef Request request = request_of(COLLECTIVE_BARRIER, NULL, NULL, 0, 0)
    return run(engine, &request)


cdef int bcast(Engine engine, void *buffer, size_t nbytes, int root) noexcept nogil:
    cdef Request request = request_of(COLLECTIVE_BCAST, NULL, buffer, nbytes, root)
    return run(engine, &request)


cdef int reduce(Engine engine, const void *send, void *recv, size_t count, int type, int op,
                int root) noexcept nogil:
    cdef Request request = reduction_of(COLLECTIVE_REDUCE, send, recv, count, type, op, root)
    return run(engine, &request)


cdef int allreduce(Engine engine, const void *send, void *recv, size_t count, int type,
                   int op) noexcept nogil:
    cdef Request request = reduction_of(COLLECTIVE_ALLREDUCE, send, recv, count, type, op, 0)
    return run(engine, &request)


cdef int scan(Engine engine, const void *send, void *recv, size_t count, int type,
              int op) noexcept nogil:
    cdef Request request = reduction_of(COLLECTIVE_SCAN, send, recv, count, type, op, 0)
    return run(engine, &request)


cdef int exscan(Engine engine, const void *send, void *recv, size_t count, int type,
                int op) noexcept nogil:
    cdef Request request = reduction_of(COLLECTIVE_EXSCAN, send, recv, count, type, op, 0)
    return run(engine, &request)


cdef int reduce_scatter(Engine engine, const void *send, void *recv, const size_t *counts,
                        int type, int op) noexcept nogil:
    cdef Request request = reduction_of(COLLECTIVE_REDUCE_SCATTER, send, recv, 0, type, op, 0)
    request.counts = counts
    return run(engine, &request)


cdef int reduce_scatter_block(Engine engine, const void *send, void *recv, size_t count,
                              int type, int op) noexcept nogil:
    cdef Request request = reduction_of(COLLECTIVE_REDUCE_SCATTER, send, recv, count, type, op, 0)
    return run(engine, &request)


cdef int allgather_equal(Engine engine, const void *send, void *recv,
                         size_t nbytes) noexcept nogil:
    cdef Request request = request_of(COLLECTIVE_ALLGATHER, send, recv, nbytes, 0)
    return run(engine, &request)


cdef int gather(Engine engine, const void *send, void *recv, size_t nbytes,
                int root) noexcept nogil:
    cdef Request request = request_of(COLLECTIVE_GATHER, send, recv, nbytes, root)
    return run(engine, &request)


cdef int scatter(Engine engine, const void *send, void *recv, size_t nbytes,
                 int root) noexcept nogil:
    cdef Request request = request_of(COLLECTIVE_SCATTER, send, recv, nbytes, root)
    return run(engine, &request)


cdef int alltoall(Engine engine, const void *send, void *recv, size_t nbytes) noexcept nogil:
    cdef Request request = request_of(COLLECTIVE_ALLTOALL, send, recv, nbytes, 0)
    return run(engine, &request)


cdef int allgatherv(Engine engine, const void *send, size_t nbytes, void *recv,
                    const size_t *lengths, const ptrdiff_t *starts) noexcept nogil:
    cdef Request request = request_of(COLLECTIVE_ALLGATHER, send, recv, nbytes, 0)
    request.lengths = lengths
    request.starts = starts
    return run(engine, &request)


cdef int gatherv(Engine engine, const void *send, size_t nbytes, void *recv,
                 const size_t *lengths, const ptrdiff_t *starts, int root) noexcept nogil:
    cdef Request request = request_of(COLLECTIVE_GATHER, send, recv, nbytes, root)
    request.lengths = lengths
    request.starts = starts
    return run(engine, &request)


cdef int scatterv(Engine engine, const void *send, const size_t *lengths, const ptrdiff_t *starts,
                  void *recv, size_t nbytes, int root) noexcept nogil:
    cdef Request request = request_of(COLLECTIVE_SCATTER, send, recv, nbytes, root)
    request.send_lengths = lengths
    request.send_starts = starts
    return run(engine, &request)


cdef int alltoallv(Engine engine, const void *send, const size_t *send_lengths,
                   const ptrdiff_t *send_starts, void *recv, const size_t *lengths,
                   const ptrdiff_t *starts) noexcept nogil:
    cdef Request request = request_of(COLLECTIVE_ALLTOALL, send, recv, 0, 0)
    request.send_lengths = send_lengths
    request.send_starts = send_starts
    request.lengths = lengths
    request.starts = starts
    return run(engine, &request)


cdef int type_of(uintptr_t handle) noexcept with gil:
    try:
        return code_of_type(MPI.Datatype.fromhandle(handle))
    except BaseException:
        return -1


cdef int op_of(uintptr_t handle) noexcept with gil:
    try:
        return code_of_op(MPI.Op.fromhandle(handle))
    except BaseException:
        return -1


cdef size_t error_text(Engine engine, char *text, size_t size) noexcept with gil:
    cdef bytes message = (engine.last_error or "").encode()
    if size > 0:
        strncpy(text, message, size - 1)
        text[size - 1] = 0
    return len(message)


cdef smcoll_api _table


cdef inline void put(void *entry, void *function) noexcept:
    # An Engine is passed as the Python object that it is.
    (<void **> entry)[0] = function


_table.version = SMCOLL_API_VERSION
put(&_table.type_of, <void *> type_of)
put(&_table.op_of, <void *> op_of)
put(&_table.error, <void *> error_text)
put(&_table.barrier, <void *> barrier)
put(&_table.bcast, <void *> bcast)
put(&_table.reduce, <void *> reduce)
put(&_table.allreduce, <void *> allreduce)
put(&_table.scan, <void *> scan)
put(&_table.exscan, <void *> exscan)
put(&_table.reduce_scatter, <void *> reduce_scatter)
put(&_table.reduce_scatter_block, <void *> reduce_scatter_block)
put(&_table.allgather, <void *> allgather_equal)
put(&_table.gather, <void *> gather)
put(&_table.scatter, <void *> scatter)
put(&_table.alltoall, <void *> alltoall)
put(&_table.allgatherv, <void *> allgatherv)
put(&_table.gatherv, <void *> gatherv)
put(&_table.scatterv, <void *> scatterv)
put(&_table.alltoallv, <void *> alltoallv)

c_api = PyCapsule_New(&_table, SMCOLL_CAPSULE, NULL)
