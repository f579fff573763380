"""What is known of each communicator that a C library called a collective on, by its handle.

An entry is made in the communicator's first call and ends with the communicator: an attribute on it
tells.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc

from smcoll.base.atomics cimport cpu_pause, store_release, try_lock, unlock
from smcoll.comm.c_api cimport smcoll_engine
from smcoll.interpose.comparison cimport CallsFromC
from smcoll.interpose.functions cimport SUCCESS, mpi, word
from smcoll.interpose.handles cimport known

cdef extern from "Python.h":
    int Py_IsInitialized() noexcept nogil

cdef int _keyval
cdef int _table_is_locked = 0
cdef Entry *_free_entries = NULL


cdef void lock_table() noexcept nogil:
    while not try_lock(&_table_is_locked):
        cpu_pause()


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
    store_release(<uint64_t *> &entry.next, <uint64_t> buckets[bucket_of(comm)])
    store_release(<uint64_t *> &entry.comm, comm)
    store_release(<uint64_t *> &buckets[bucket_of(comm)], <uint64_t> entry)
    unlock(&_table_is_locked)
    return entry


cdef void take_free() noexcept nogil:
    global _free_entries
    _free_entries = _free_entries.next_free


cdef void give_back(Entry *entry) noexcept nogil:
    global _free_entries
    entry.comm = known.null_comm
    entry.next_free = _free_entries
    _free_entries = entry


cdef int forget(word comm, int keyval, void *attribute, void *extra) noexcept nogil:
    """MPI deletes the attribute: the communicator is being freed."""
    cdef Entry *entry = <Entry *> attribute
    cdef Entry **link = &buckets[bucket_of(entry.comm)]
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


def create_keyval():
    """The attribute through which MPI tells that it frees a communicator."""
    from mpi4py import MPI

    if mpi.create_keyval(<void *> not_copied, <void *> forget, &_keyval, NULL) != SUCCESS:
        raise MPI.Exception(MPI.ERR_KEYVAL)
