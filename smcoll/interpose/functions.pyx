"""MPI's own functions, found in the library that mpi4py loaded."""

cdef extern from "<dlfcn.h>" nogil:
    void *dlopen(const char *, int)
    void *dlsym(void *, const char *)
    int RTLD_LAZY, RTLD_NOLOAD

NAMES = ("Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv",
         "Alltoall", "Alltoallv", "Alltoallw", "Reduce", "Allreduce", "Reduce_scatter",
         "Reduce_scatter_block", "Scan", "Exscan")

ctypedef int (*mpi_1)(word) noexcept nogil
ctypedef int (*mpi_5)(word, word, word, word, word) noexcept nogil
ctypedef int (*mpi_6)(word, word, word, word, word, word) noexcept nogil
ctypedef int (*mpi_7)(word, word, word, word, word, word, word) noexcept nogil
ctypedef int (*mpi_8)(word, word, word, word, word, word, word, word) noexcept nogil
ctypedef int (*mpi_9)(word, word, word, word, word, word, word, word, word) noexcept nogil

cdef void *_collectives[2][FUNCTIONS]      # those with MPI_Count second


def open_functions(str mpi4py_library):
    """Find them. Once, before the first call. Whether MPI has those with large counts."""
    cdef void *library = dlopen(mpi4py_library.encode(), RTLD_LAZY | RTLD_NOLOAD)
    if library == NULL:
        raise OSError(f"{mpi4py_library} is not loaded")
    for i, name in enumerate(NAMES):
        _collectives[0][i] = function_of(library, f"PMPI_{name}")
        _collectives[1][i] = dlsym(library, f"PMPI_{name}_c".encode())
    mpi.set_attr = <set_attr_function> function_of(library, "PMPI_Comm_set_attr")
    mpi.comm_size = <two_words> function_of(library, "PMPI_Comm_size")
    mpi.comm_rank = <two_words> function_of(library, "PMPI_Comm_rank")
    mpi.test_inter = <two_words> function_of(library, "PMPI_Comm_test_inter")
    mpi.type_size = <two_words> function_of(library, "PMPI_Type_size")
    mpi.call_errhandler = <error_function> function_of(library, "PMPI_Comm_call_errhandler")
    mpi.error_class = <code_function> function_of(library, "PMPI_Error_class")
    mpi.create_keyval = <keyval_function> function_of(library, "PMPI_Comm_create_keyval")
    return all(_collectives[1][i] != NULL for i in range(1, FUNCTIONS))


cdef void *function_of(void *library, str name) except NULL:
    cdef void *function = dlsym(library, name.encode())
    if function == NULL:
        raise OSError(f"MPI's library has no {name}")
    return function


cdef int by_mpi(const Arguments *call) noexcept nogil:
    """Have MPI carry the call out: its return value."""
    cdef void *function = _collectives[call.wide][call.function]
    cdef int kind = call.function
    if kind == BARRIER:
        return (<mpi_1> function)(call.comm)
    if kind == BCAST:
        return (<mpi_5> function)(call.recv, call.recv_count, call.recv_type, call.root, call.comm)
    if kind == REDUCE:
        return (<mpi_7> function)(call.send, call.recv, call.recv_count, call.recv_type, call.op,
                                  call.root, call.comm)
    if kind > REDUCE:
        return (<mpi_6> function)(call.send, call.recv, call.recv_count, call.recv_type, call.op,
                                  call.comm)
    if kind == ALLGATHER or kind == ALLTOALL:
        return (<mpi_7> function)(call.send, call.send_count, call.send_type, call.recv,
                                  call.recv_count, call.recv_type, call.comm)
    if kind == GATHER or kind == SCATTER:
        return (<mpi_8> function)(call.send, call.send_count, call.send_type, call.recv,
                                  call.recv_count, call.recv_type, call.root, call.comm)
    if kind == ALLGATHERV:
        return (<mpi_8> function)(call.send, call.send_count, call.send_type, call.recv,
                                  call.recv_count, call.recv_starts, call.recv_type, call.comm)
    if kind == GATHERV:
        return (<mpi_9> function)(call.send, call.send_count, call.send_type, call.recv,
                                  call.recv_count, call.recv_starts, call.recv_type, call.root,
                                  call.comm)
    if kind == SCATTERV:
        return (<mpi_9> function)(call.send, call.send_count, call.send_starts, call.send_type,
                                  call.recv, call.recv_count, call.recv_type, call.root, call.comm)
    return (<mpi_9> function)(call.send, call.send_count, call.send_starts, call.send_type,
                              call.recv, call.recv_count, call.recv_starts, call.recv_type,
                              call.comm)
