"""Arrays of other libraries, by DLPack (dlpack.h, versions 0 and 1) or the CUDA array interface.

A capsule is read here, not by numpy.from_dlpack: that takes it over, so that the memory ends by the
exporter's deleter at some later time, and refuses types that MPI has. mpi4py borrows it for the
call, and exporters rely on that.

Where the memory is may not select a path (protocol rule 3), so what the CPU can't reach is refused;
whether it can is tried, since pinned and managed memory of a device is as good as any.
"""

import os

import numpy

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from posix.unistd cimport write

cdef enum:
    ON_CPU = 1
    READ_ONLY = 1              # flag of a versioned tensor

cdef struct DLTensor:
    void *data
    int32_t device_type, device_id
    int32_t ndim
    uint8_t code
    uint8_t bits
    uint16_t lanes
    int64_t *shape
    int64_t *strides
    uint64_t byte_offset

cdef struct DLManagedTensorVersioned:
    uint32_t major, minor
    void *context
    void *deleter
    uint64_t flags
    DLTensor tensor

# (type code, bits) -> format: int, unsigned, float, complex, bool.
cdef dict _FORMATS = {
    (0, 8): b"b", (0, 16): b"h", (0, 32): b"i", (0, 64): b"l",
    (1, 8): b"B", (1, 16): b"H", (1, 32): b"I", (1, 64): b"L",
    (2, 16): b"e", (2, 32): b"f", (2, 64): b"d", (2, 128): b"g",
    (5, 32): b"Ze", (5, 64): b"Zf", (5, 128): b"Zd", (5, 256): b"Zg",
    (6, 8): b"?",
}


cdef Tensor tensor_of(source):
    """The memory of an object with one of the protocols.

    BufferError for memory that the CPU can't reach or that is not contiguous.
    """
    if not hasattr(source, "__dlpack__"):
        return cuda_array_of(source)
    cdef Tensor result = Tensor()
    cdef DLManagedTensorVersioned *versioned
    cdef const DLTensor *tensor
    cdef bint on_cpu = source.__dlpack_device__()[0] == ON_CPU
    stream = {} if on_cpu else {"stream": -1}
    try:
        result.capsule = source.__dlpack__(max_version=(1, 0), copy=False, **stream)
    except TypeError:
        result.capsule = source.__dlpack__(**stream)
    if PyCapsule_IsValid(result.capsule, b"dltensor_versioned"):
        versioned = <DLManagedTensorVersioned *> PyCapsule_GetPointer(result.capsule,
                                                                      b"dltensor_versioned")
        if versioned.major > 1:
            raise BufferError(f"dlpack: unexpected version {versioned.major}.{versioned.minor}")
        result.readonly = versioned.flags & READ_ONLY
        tensor = &versioned.tensor
    elif PyCapsule_IsValid(result.capsule, b"dltensor"):
        tensor = <const DLTensor *> PyCapsule_GetPointer(result.capsule, b"dltensor")
    else:
        raise BufferError("dlpack: invalid capsule object")
    check_shape(tensor)
    if not contiguous(tensor, False) and not contiguous(tensor, True):
        raise BufferError("dlpack: buffer is not contiguous")
    result.nbytes = elements(tensor) * ((<Py_ssize_t> tensor.bits * tensor.lanes + 7) // 8)
    result.address = <char *> tensor.data + tensor.byte_offset if result.nbytes else NULL
    result.format = format_of(tensor)
    if not on_cpu:
        check_reachable(result)
    return result


cdef Tensor cuda_array_of(source):
    """The same for the CUDA array interface."""
    cdef Tensor result = Tensor()
    facts = source.__cuda_array_interface__
    if facts.get("mask") is not None:
        raise BufferError("__cuda_array_interface__: cannot handle masked arrays")
    dtype = numpy.dtype(facts["typestr"])
    address, result.readonly = facts["data"]
    result.capsule = source
    result.nbytes = dtype.itemsize
    for length in facts["shape"]:
        result.nbytes *= length
    strides = facts.get("strides")
    if strides is not None and result.nbytes > 0 and not strided_contiguously(
            facts["shape"], strides, dtype.itemsize):
        raise BufferError("__cuda_array_interface__: buffer is not contiguous")
    result.address = <char *> <uintptr_t> (address or 0)
    swapped = dtype.byteorder not in "=|" and dtype != dtype.newbyteorder("=")
    result.format = (">" * swapped + dtype.char).encode()
    check_reachable(result)
    return result


cdef bint strided_contiguously(shape, strides, itemsize):
    for order in (1, -1):
        expected = itemsize
        for length, stride in list(zip(shape, strides))[::order]:
            if length > 1 and stride != expected:
                break
            expected *= length
        else:
            return True
    return False


cdef object _pipe = None


cdef check_reachable(Tensor tensor):
    """The system says whether an address can be read, without a signal: write() from it."""
    global _pipe
    cdef Py_ssize_t at
    if tensor.nbytes == 0:
        return
    if _pipe is None or _pipe[2] != os.getpid():
        _pipe = (*os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK), os.getpid())
    for at in (0, tensor.nbytes - 1):
        if write(_pipe[1], tensor.address + at, 1) != 1:
            raise BufferError("the buffer is not in memory that the CPU can reach; smcoll moves "
                              "data through shared memory")
        os.read(_pipe[0], 1)


cdef check_shape(const DLTensor *tensor):
    cdef int i
    if tensor.ndim < 0:
        raise BufferError("dlpack: number of dimensions is negative")
    if tensor.ndim > 0 and tensor.shape == NULL:
        raise BufferError("dlpack: shape is NULL")
    for i in range(tensor.ndim):
        if tensor.shape[i] < 0:
            raise BufferError("dlpack: shape item is negative")
        if tensor.strides != NULL and tensor.strides[i] < 0:
            raise BufferError("dlpack: strides item is negative")


cdef Py_ssize_t elements(const DLTensor *tensor):
    cdef Py_ssize_t count = 1
    cdef int i
    for i in range(tensor.ndim):
        count *= tensor.shape[i]
    return count


cdef bint contiguous(const DLTensor *tensor, bint fortran):
    """Whether the elements lie one behind the other, the last (or first) dimension fastest."""
    cdef int64_t expected = 1
    cdef int i, dimension
    if tensor.strides == NULL:
        return not fortran
    for i in range(tensor.ndim):
        dimension = i if fortran else tensor.ndim - 1 - i
        if tensor.shape[dimension] > 1 and tensor.strides[dimension] != expected:
            return False
        expected *= tensor.shape[dimension]
    return True


cdef bytes format_of(const DLTensor *tensor):
    """None: elements that no format describes (bfloat16, ...); as MPI.BYTE they can be moved."""
    if tensor.lanes == 2 and tensor.code == 2:
        # Pairs of floats are complex numbers.
        return _FORMATS.get((5, 2 * tensor.bits))
    if tensor.lanes != 1:
        return None
    return _FORMATS.get((tensor.code, tensor.bits))
