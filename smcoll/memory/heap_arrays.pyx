"""numpy arrays in this process's shared heap: by numpy's own allocator, or one by one.

numpy's allocator is exchanged by NEP 49: arrays of at least a threshold get a block of the heap,
where it has one, and all others what numpy would give them. An array remembers the handler that
made it, so arrays may outlive ``stop_using``, communicators and MPI; realloc and free tell the two
kinds of memory apart by address.

numpy keeps the handler in a context variable. So it holds in the thread that sets it, in what
copies that thread's context (asyncio's tasks), and in threads that inherit it (Python >= 3.14 with
``thread_inherit_context``). Other threads have numpy's own allocator until they call ``use``
themselves; their arrays are as right as any, only staged.
"""

import errno
import os
import threading

import numpy
import psutil

cimport numpy as cnp
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport uint8_t
from libc.string cimport strcpy

from smcoll.base.kernels cimport copy_bytes
from smcoll.memory.heap cimport (
    STAGED, HeapView, heap_allocate, heap_free, heap_offset, heap_ready, heap_resize, heap_room,
    own_heap,
)

from smcoll.config import Config
from smcoll.memory import heap
from smcoll.topology import node

cdef extern from "numpy/arrayobject.h":
    ctypedef struct PyDataMemAllocator:
        void *ctx
        void *(*malloc)(void *ctx, size_t size) noexcept nogil
        void *(*calloc)(void *ctx, size_t count, size_t size) noexcept nogil
        void *(*realloc)(void *ctx, void *memory, size_t size) noexcept nogil
        void (*free)(void *ctx, void *memory, size_t size) noexcept nogil
    ctypedef struct PyDataMem_Handler:
        char name[127]
        uint8_t version
        PyDataMemAllocator allocator
    object PyDataMem_SetHandler(object handler)
    object PyDataMem_GetHandler()
    PyObject *PyDataMem_DefaultHandler

# gcc's and clang's, as the atomics are.
cdef extern from * nogil:
    bint multiply_overflows "__builtin_mul_overflow"(size_t a, size_t b, size_t *product) noexcept

cnp.import_array()

cdef const char *CAPSULE = "mem_handler"   # the name that numpy asks for
cdef object _default = <object> PyDataMem_DefaultHandler
cdef PyDataMemAllocator usual = (<PyDataMem_Handler *> PyCapsule_GetPointer(
    _default, CAPSULE)).allocator


# ---------------------------------------------------------------------- the handlers

# `ctx` points to the threshold in bytes. For arrays below it numpy's own allocator is one
# comparison away: millions of them cost what they cost without us.

cdef HeapView mine            # in a forked child, too


cdef inline bint in_heap(const void *memory) noexcept nogil:
    return <size_t> (<const char *> memory - mine.base) < mine.size


cdef void *allocate(void *ctx, size_t nbytes) noexcept nogil:
    cdef void *memory
    if nbytes >= (<size_t *> ctx)[0]:
        memory = heap_allocate(nbytes, False)
        if memory != NULL:
            return memory
    return usual.malloc(usual.ctx, nbytes)


cdef void *allocate_zeroed(void *ctx, size_t count, size_t size) noexcept nogil:
    cdef size_t nbytes
    cdef void *memory
    if not multiply_overflows(count, size, &nbytes) and nbytes >= (<size_t *> ctx)[0]:
        memory = heap_allocate(nbytes, True)
        if memory != NULL:
            return memory
    return usual.calloc(usual.ctx, count, size)


cdef void release(void *ctx, void *memory, size_t nbytes) noexcept nogil:
    if in_heap(memory):
        heap_free(memory)
    else:
        usual.free(usual.ctx, memory, nbytes)


cdef void *reallocate(void *ctx, void *memory, size_t nbytes) noexcept nogil:
    """A block of the heap stays there if it can; private memory stays private."""
    cdef void *moved
    if memory == NULL:
        return allocate(ctx, nbytes)
    if not in_heap(memory):
        return usual.realloc(usual.ctx, memory, nbytes)
    if heap_resize(memory, nbytes):
        return memory
    moved = allocate(ctx, nbytes)
    if moved != NULL:
        copy_bytes(moved, memory, min(nbytes, heap_room(memory)))
        heap_free(memory)
    return moved


cdef PyDataMem_Handler handler_above, handler_always
cdef size_t threshold = 32768, any_size = 1


cdef object capsule_of(PyDataMem_Handler *handler, const char *name, size_t *least):
    strcpy(handler.name, name)
    handler.version = 1
    handler.allocator.ctx = least
    handler.allocator.malloc = allocate
    handler.allocator.calloc = allocate_zeroed
    handler.allocator.realloc = reallocate
    handler.allocator.free = release
    return PyCapsule_New(handler, CAPSULE, NULL)


cdef object _above = capsule_of(&handler_above, b"smcoll heap", &threshold)
cdef object _always = capsule_of(&handler_always, b"smcoll heap, any size", &any_size)


# ---------------------------------------------------------------------- using it

cdef object _making = None     # making a heap gives the GIL up: a second thread would make another


def _new_lock():
    # A forked child may have inherited it taken.
    global _making
    _making = threading.RLock()


_new_lock()
os.register_at_fork(after_in_child=_new_lock)


def ensure(config, int ranks_on_node=0):
    """Make this process's heap if it has none, with its share of what the settings allow.

    OSError where it can't be had.
    """
    with _making:
        make_or_limit(config, ranks_on_node)


cdef make_or_limit(config, int ranks_on_node):
    global mine
    ranks = ranks_on_node or node.ranks_of_launcher() or 1
    limit = (config.heap_size or psutil.virtual_memory().total // 2) // ranks
    if heap.usage()["address_space"] == 0:
        heap.create(psutil.virtual_memory().total, limit, lambda: node.memory_headroom())
        mine = own_heap()
    elif heap.record() is None:
        raise OSError(errno.ENOTSUP, "a forked process has no heap of its own")
    else:
        heap.set_limit(limit)


def use(config=None):
    """From now on numpy puts arrays of ``internals.heap_threshold`` bytes and more into the heap.

    In the calling thread, and in what copies or inherits its context. Where the heap can't be had
    nothing changes. False then.
    """
    global threshold
    config = config or Config()
    try:
        ensure(config)
    except OSError:
        return False
    threshold = config.internals.heap_threshold
    PyDataMem_SetHandler(_above)
    return True


def stop_using():
    """Give the calling thread numpy's own allocator back. Arrays in the heap stay valid."""
    if PyDataMem_GetHandler() is _above:
        PyDataMem_SetHandler(_default)


cdef in_the_heap(make, comm):
    """What ``make()`` makes, with its memory in the heap, unless ``comm`` can't use it."""
    if comm is not None and not getattr(comm, "may_use_heap", False):
        return make()
    if not heap_ready():
        try:
            ensure(Config())
        except OSError:
            return make()
    before = PyDataMem_SetHandler(_always)
    try:
        return make()
    finally:
        PyDataMem_SetHandler(before)


def empty(shape, dtype=float, order="C", *, comm=None):
    """``numpy.empty`` in this process's shared heap.

    The ranks of a communicator with ``Config(heap=True)`` read and write such an array where it
    lies. Private memory, silently, where the heap has no more room, and where ``comm`` is given
    and can't use it. Never collective.
    """
    return in_the_heap(lambda: numpy.empty(shape, dtype, order), comm)


def zeros(shape, dtype=float, order="C", *, comm=None):
    """``numpy.zeros`` in this process's shared heap; see ``empty``."""
    return in_the_heap(lambda: numpy.zeros(shape, dtype, order), comm)


def array(source, dtype=None, order="K", *, comm=None):
    """``numpy.array`` (always a copy) in this process's shared heap; see ``empty``."""
    return in_the_heap(lambda: numpy.array(source, dtype, copy=True, order=order), comm)


def empty_like(prototype, dtype=None, order="K", *, comm=None):
    """``numpy.empty_like`` in this process's shared heap; see ``empty``."""
    return in_the_heap(lambda: numpy.empty_like(prototype, dtype, order, subok=False), comm)


def is_shared(a):
    """Whether all elements of an array lie in this process's shared heap. Views count too."""
    cdef cnp.ndarray memory = a
    cdef HeapView view = own_heap()
    cdef char *low = <char *> cnp.PyArray_DATA(memory)
    cdef char *high = low + <Py_ssize_t> cnp.PyArray_ITEMSIZE(memory)
    cdef Py_ssize_t reach
    for length, stride in zip(a.shape, a.strides):
        if length == 0:
            return False
        reach = (length - 1) * stride
        if reach < 0:
            low += reach
        else:
            high += reach
    return heap_offset(&view, low, high - low) != STAGED
