"""The reduction kernels behind one interface, and the same for Python (tests, upper layers)."""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free


cdef extern from "reduction_kernels.h" nogil:
    reduction_kernel find_reduction_kernel(int op, int element_type, int instruction_set) noexcept
    int detect_instruction_set() noexcept


OPERATIONS = {
    "SUM": OP_SUM, "PROD": OP_PROD, "MAX": OP_MAX, "MIN": OP_MIN,
    "LAND": OP_LAND, "BAND": OP_BAND, "LOR": OP_LOR, "BOR": OP_BOR,
    "LXOR": OP_LXOR, "BXOR": OP_BXOR,
}

ELEMENT_TYPES = {
    "int8": TYPE_INT8, "int16": TYPE_INT16, "int32": TYPE_INT32, "int64": TYPE_INT64,
    "uint8": TYPE_UINT8, "uint16": TYPE_UINT16, "uint32": TYPE_UINT32, "uint64": TYPE_UINT64,
    "bool": TYPE_BOOL,
    "float32": TYPE_FLOAT, "float64": TYPE_DOUBLE, "longdouble": TYPE_LONG_DOUBLE,
    "complex64": TYPE_COMPLEX_FLOAT, "complex128": TYPE_COMPLEX_DOUBLE,
}

INSTRUCTION_SET_NAMES = ("baseline", "avx2", "avx512")


cdef reduction_kernel reduction_kernel_for(int op, int element_type,
                                           int instruction_set) noexcept nogil:
    return find_reduction_kernel(op, element_type, instruction_set)


cdef int best_instruction_set() noexcept nogil:
    return detect_instruction_set()


def available(int op_code, int type_code):
    """Does MPI define this operation on this element type?"""
    return find_reduction_kernel(op_code, type_code, INSTRUCTIONS_BASELINE) != NULL


def instruction_set():
    """Name of the best instruction set that this CPU can run."""
    return INSTRUCTION_SET_NAMES[detect_instruction_set()]


def instruction_sets():
    """Names of all instruction sets that this CPU can run, the portable baseline first."""
    return INSTRUCTION_SET_NAMES[:detect_instruction_set() + 1]


cdef class _Views:
    """Buffers of one call, released together."""

    cdef Py_buffer *views
    cdef const void **addresses
    cdef int held

    def __cinit__(self, Py_ssize_t capacity):
        self.views = <Py_buffer *> calloc(capacity, sizeof(Py_buffer))
        self.addresses = <const void **> calloc(capacity, sizeof(void *))
        if self.views == NULL or self.addresses == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int i
        for i in range(self.held):
            PyBuffer_Release(&self.views[i])
        free(self.views)
        free(self.addresses)

    cdef Py_buffer *hold(self, object buffer, int flags) except NULL:
        cdef Py_buffer *view = &self.views[self.held]
        PyObject_GetBuffer(buffer, view, flags)
        self.addresses[self.held] = view.buf
        self.held += 1
        return view


def reduce(int op_code, int type_code, out, sources, instruction_set=None):
    """out[i] = ((sources[0][i] op sources[1][i]) op sources[2][i]) op ... over the bytes of `out`.

    Any contiguous buffers; `out` may be one or more of the sources, but not overlap one partly.
    `instruction_set` is one of the names in `instruction_sets()`; None takes the best.
    """
    names = instruction_sets()
    if instruction_set is not None and instruction_set not in names:
        raise ValueError(f"instruction set {instruction_set!r} is not one of {', '.join(names)}")
    cdef int chosen = len(names) - 1
    if instruction_set is not None:
        chosen = names.index(instruction_set)
    cdef reduction_kernel kernel = find_reduction_kernel(op_code, type_code, chosen)
    if kernel == NULL:
        raise TypeError(f"MPI defines no operation {op_code} on element type {type_code}")
    sources = tuple(sources)
    if not sources:
        raise ValueError("a reduction needs at least one source")

    cdef int count = len(sources)
    cdef _Views held = _Views(count + 1)
    cdef Py_buffer *view
    cdef size_t nbytes, distance
    cdef uintptr_t out_address, address
    for source in sources:
        held.hold(source, PyBUF_SIMPLE)
    view = held.hold(out, PyBUF_WRITABLE)
    nbytes = <size_t> view.len
    if nbytes % element_size(type_code):
        raise ValueError(f"out has {nbytes} bytes, elements have {element_size(type_code)}")
    out_address = <uintptr_t> view.buf
    for i in range(count):
        if <size_t> held.views[i].len < nbytes:
            raise ValueError(f"source {i} has {held.views[i].len} bytes, out has {nbytes}")
        address = <uintptr_t> held.views[i].buf
        distance = address - out_address if address > out_address else out_address - address
        if 0 < distance < nbytes:
            raise ValueError(f"source {i} overlaps out partly")
    with nogil:
        kernel(view.buf, held.addresses, count, nbytes // element_size(type_code))


def copy(out, source, bint streaming=False):
    """Copy a contiguous buffer into another of the same length, optionally around the caches."""
    cdef _Views held = _Views(2)
    cdef Py_buffer *to = held.hold(out, PyBUF_WRITABLE)
    cdef Py_buffer *origin = held.hold(source, PyBUF_SIMPLE)
    if to.len != origin.len:
        raise ValueError(f"out has {to.len} bytes, source has {origin.len}")
    cdef size_t distance
    if <uintptr_t> to.buf > <uintptr_t> origin.buf:
        distance = <uintptr_t> to.buf - <uintptr_t> origin.buf
    else:
        distance = <uintptr_t> origin.buf - <uintptr_t> to.buf
    if distance < <size_t> to.len:
        raise ValueError("out and source overlap")
    with nogil:
        if streaming:
            copy_bytes_streaming(to.buf, origin.buf, <size_t> to.len)
        else:
            copy_bytes(to.buf, origin.buf, <size_t> to.len)
