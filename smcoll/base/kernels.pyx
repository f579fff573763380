"""The reduction kernels behind one interface, and the same for Python (tests, upper layers)."""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy


cdef extern from "reduction_kernels.h" nogil:
    reduction_kernel find_reduction_kernel(int op, int element_type, int instruction_set) noexcept
    int detect_instruction_set() noexcept


cdef extern from "copy_kernels.h" nogil:
    ctypedef void (*copy_kernel)(void *out, const void *source, size_t nbytes) noexcept nogil
    copy_kernel find_copy_kernel(int stores, int instruction_set) noexcept
    copy_kernel find_interleaved_kernel(int instruction_set) noexcept
    bint is_string_copy_fast(int instruction_set) noexcept


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

# As they stand in Config.stores; positions are STORES_*.
STORES_NAMES = ("ordinary", "string", "non_temporal")

# Looked up once: where this runs in a virtual machine, to ask the processor takes microseconds.
cdef copy_kernel copy_kernels[STORES_KINDS]
cdef copy_kernel interleaved_kernel = find_interleaved_kernel(detect_instruction_set())
cdef bint available_stores[STORES_KINDS]
cdef int _kind
for _kind in range(STORES_KINDS):
    copy_kernels[_kind] = find_copy_kernel(_kind, detect_instruction_set())
    available_stores[_kind] = copy_kernels[_kind] != NULL
    if not available_stores[_kind]:
        copy_kernels[_kind] = copy_kernels[STORES_ORDINARY]
long_copy_stores = (
    STORES_STRING if is_string_copy_fast(detect_instruction_set()) else STORES_ORDINARY)


cdef void copy_long(int stores, void *out, const void *source, size_t nbytes) noexcept nogil:
    copy_kernels[stores](out, source, nbytes)


cdef void copy_own(void *out, const void *source, size_t nbytes) noexcept nogil:
    copy_kernels[long_copy_stores if nbytes >= STRING_FROM else STORES_ORDINARY](
        out, source, nbytes)


cdef void copy_interleaved(void *out, const void *source, size_t nbytes) noexcept nogil:
    interleaved_kernel(out, source, nbytes)


cdef bint has_stores(int stores) noexcept nogil:
    return available_stores[stores]


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


def _instruction_set_number(name):
    names = instruction_sets()
    if name is not None and name not in names:
        raise ValueError(f"instruction set {name!r} is not one of {', '.join(names)}")
    return len(names) - 1 if name is None else names.index(name)


def reduce(int op_code, int type_code, out, sources, instruction_set=None):
    """out[i] = ((sources[0][i] op sources[1][i]) op sources[2][i]) op ... over the bytes of `out`.

    Any contiguous buffers; `out` may be one or more of the sources, but not overlap one partly.
    `instruction_set` is one of the names in `instruction_sets()`; None takes the best.
    """
    cdef reduction_kernel kernel = find_reduction_kernel(
        op_code, type_code, _instruction_set_number(instruction_set))
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


def stores_available():
    """Names of the kinds of stores that this processor has, as in ``Config.stores``."""
    return tuple(name for kind, name in enumerate(STORES_NAMES) if has_stores(kind))


def copy(out, source, stores="ordinary", instruction_set=None, interleaved=False):
    """Copy a contiguous buffer into another of the same length, with this kind of stores.

    ``stores`` is one of ``stores_available()``, ``instruction_set`` one of ``instruction_sets()``;
    None takes the best. ``interleaved``: as from lines that lie in memory, with ordinary stores.
    """
    if stores not in stores_available():
        raise ValueError(f"stores {stores!r} is not one of {', '.join(stores_available())}")
    cdef int instructions = _instruction_set_number(instruction_set)
    cdef copy_kernel kernel = (find_interleaved_kernel(instructions) if interleaved else
                               find_copy_kernel(STORES_NAMES.index(stores), instructions))
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
        if <size_t> to.len <= SHORT_COPY:
            memcpy(to.buf, origin.buf, <size_t> to.len)
        else:
            kernel(to.buf, origin.buf, <size_t> to.len)
