"""Buffer arguments as mpi4py takes them: one place that parses them all.

``buf``, ``(buf, count)``, ``(buf, (count, displ))``, ``(buf, type)``, ``(buf, count, type)``,
``(buf, (count, displ), type)``, ``(buf, count, displ, type)``, tuples or lists; ``type`` is a
Datatype or a type code. Wrong ones raise what mpi4py 4.1 raises for them.
"""

from operator import index

import numpy

cimport cython
cimport numpy as cnp
from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_CheckBuffer,
    PyObject_GetBuffer,
)

from smcoll.base.kernels cimport (
    TYPE_BOOL, TYPE_COMPLEX_DOUBLE, TYPE_COMPLEX_FLOAT, TYPE_DOUBLE, TYPE_FLOAT, TYPE_INT8,
    TYPE_INT16, TYPE_INT32, TYPE_INT64, TYPE_LONG_DOUBLE, TYPE_UINT8, TYPE_UINT16, TYPE_UINT32,
    TYPE_UINT64, element_size,
)
from smcoll.buffers.arrays cimport Tensor, tensor_of
from smcoll.datatype.convertor cimport start_convertor
from smcoll.datatype.datatypes cimport typemap_of

from mpi4py import MPI

cnp.import_array()

# Looked up once: an attribute of a module costs as much as the copy of a short message.
cdef object Datatype = MPI.Datatype
cdef object BOTTOM = MPI.BOTTOM
cdef object IN_PLACE = MPI.IN_PLACE
# ``[IN_PLACE, count, type]`` comes to this address: in place too, since only the address counts.
cdef char *IN_PLACE_ADDRESS = <char *> <Py_ssize_t> int(MPI.IN_PLACE)
cdef int _code_of_numpy_type[64]


cdef int _signed(size_t size):
    return {1: TYPE_INT8, 2: TYPE_INT16, 4: TYPE_INT32, 8: TYPE_INT64}[size]


cdef int _unsigned(size_t size):
    return {1: TYPE_UINT8, 2: TYPE_UINT16, 4: TYPE_UINT32, 8: TYPE_UINT64}[size]


def _fill_numpy_types():
    cdef int i
    for i in range(64):
        _code_of_numpy_type[i] = -1
    for kind, code in (("?", TYPE_BOOL), ("f", TYPE_FLOAT), ("d", TYPE_DOUBLE),
                       ("g", TYPE_LONG_DOUBLE), ("F", TYPE_COMPLEX_FLOAT),
                       ("D", TYPE_COMPLEX_DOUBLE)):
        _code_of_numpy_type[numpy.dtype(kind).num] = code
    for kind in "bhilq":
        _code_of_numpy_type[numpy.dtype(kind).num] = _signed(numpy.dtype(kind).itemsize)
    for kind in "BHILQ":
        _code_of_numpy_type[numpy.dtype(kind).num] = _unsigned(numpy.dtype(kind).itemsize)


_fill_numpy_types()


def _mpi_types():
    """Handle of a predefined datatype -> code: kind and size decide, LONG and INT64_T are one."""
    codes = {}
    signed = ("SIGNED_CHAR SHORT INT LONG LONG_LONG INT8_T INT16_T INT32_T INT64_T AINT COUNT "
              "OFFSET INTEGER INTEGER1 INTEGER2 INTEGER4 INTEGER8")
    unsigned = ("UNSIGNED_CHAR UNSIGNED_SHORT UNSIGNED UNSIGNED_LONG UNSIGNED_LONG_LONG UINT8_T "
                "UINT16_T UINT32_T UINT64_T BYTE")
    floating = ("FLOAT DOUBLE LONG_DOUBLE REAL DOUBLE_PRECISION REAL4 REAL8")
    complexes = ("C_FLOAT_COMPLEX C_DOUBLE_COMPLEX CXX_FLOAT_COMPLEX CXX_DOUBLE_COMPLEX COMPLEX "
                 "DOUBLE_COMPLEX COMPLEX8 COMPLEX16")
    logical = "C_BOOL CXX_BOOL"
    long_double = numpy.dtype("g").itemsize
    for names, by_size in (
        (signed, {1: TYPE_INT8, 2: TYPE_INT16, 4: TYPE_INT32, 8: TYPE_INT64}),
        (unsigned, {1: TYPE_UINT8, 2: TYPE_UINT16, 4: TYPE_UINT32, 8: TYPE_UINT64}),
        (floating, {4: TYPE_FLOAT, 8: TYPE_DOUBLE, long_double: TYPE_LONG_DOUBLE}),
        (complexes, {8: TYPE_COMPLEX_FLOAT, 16: TYPE_COMPLEX_DOUBLE}),
        (logical, {1: TYPE_BOOL}),
    ):
        for name in names.split():
            datatype = getattr(MPI, name, MPI.DATATYPE_NULL)
            if datatype != MPI.DATATYPE_NULL and datatype.Get_size() in by_size:
                codes[datatype.handle] = by_size[datatype.Get_size()]
    return codes


cdef dict _codes_of_mpi_types = None
# mpi4py's own objects for predefined types, which live for ever, by address: no handle is asked.
cdef dict _codes_of_objects = {}
cdef list _lasting_objects = []


cdef int code_of_type(datatype):
    # Made when first needed: a program may initialise MPI itself, after importing smcoll.
    global _codes_of_mpi_types
    cdef object code
    if _codes_of_mpi_types is None:
        _codes_of_mpi_types = _mpi_types()
        for known in [*vars(MPI).values(), *MPI._typedict.values()]:
            if isinstance(known, MPI.Datatype) and known.handle in _codes_of_mpi_types:
                _lasting_objects.append(known)
                _codes_of_objects[<size_t> <void *> known] = _codes_of_mpi_types[known.handle]
    code = _codes_of_objects.get(<size_t> <void *> datatype)
    return code if code is not None else _codes_of_mpi_types.get(datatype.handle, -1)


cdef bint plain_array(object spec, bint writable, Message *message) noexcept:
    """The common case without a buffer request: a contiguous native numpy array of a plain type."""
    cdef cnp.ndarray array
    cdef int code, number
    if not cnp.PyArray_CheckExact(spec):
        return False
    array = <cnp.ndarray> spec
    number = cnp.PyArray_TYPE(array)
    if number >= 64:
        return False
    code = _code_of_numpy_type[number]
    if (code < 0 or not cnp.PyArray_ISNOTSWAPPED(array)
            or not cnp.PyArray_CHKFLAGS(array, cnp.NPY_ARRAY_C_CONTIGUOUS)
            and not cnp.PyArray_CHKFLAGS(array, cnp.NPY_ARRAY_F_CONTIGUOUS)
            or not cnp.PyArray_CHKFLAGS(array, cnp.NPY_ARRAY_ALIGNED)
            or writable and not cnp.PyArray_CHKFLAGS(array, cnp.NPY_ARRAY_WRITEABLE)):
        return False
    message.address = <char *> cnp.PyArray_DATA(array)
    message.count = <size_t> cnp.PyArray_SIZE(array)
    message.nbytes = <size_t> cnp.PyArray_NBYTES(array)
    message.element_type = code
    message.numpy_type = number
    return True


cdef bint in_place(argument) noexcept:
    """Whether a rank's own data are where the result goes."""
    return argument is None or argument is IN_PLACE


cdef class _Memory:
    """A buffer request or a DLPack tensor, held as long as its memory is used."""

    cdef Py_buffer view
    cdef bint held
    cdef Tensor tensor
    cdef char *address
    cdef Py_ssize_t nbytes
    cdef bytes format

    def __cinit__(self, source, bint writable, bint with_format):
        cdef int flags = PyBUF_ANY_CONTIGUOUS
        if writable:
            flags |= PyBUF_WRITABLE
        if with_format:
            flags |= PyBUF_FORMAT
        try:
            PyObject_GetBuffer(source, &self.view, flags)
        except (BufferError, TypeError, ValueError) as error:
            if not _has_other_protocol(source):
                raise
            # numpy's arrays have both protocols, and DLPack refuses what PEP 3118 refused.
            if PyObject_CheckBuffer(source):
                raise BufferError(str(error)) from None
            self.take_tensor(source, writable)
            return
        self.held = True
        self.address = <char *> self.view.buf
        self.nbytes = self.view.len
        if with_format:
            self.format = self.view.format if self.view.format != NULL else b"B"

    cdef take_tensor(self, source, bint writable):
        self.tensor = tensor_of(source)
        if writable and self.tensor.readonly:
            raise BufferError("buffer is read-only")
        self.address = self.tensor.address
        self.nbytes = self.tensor.nbytes
        self.format = self.tensor.format

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef bint _has_other_protocol(source):
    return hasattr(source, "__dlpack__") or hasattr(source, "__cuda_array_interface__")


cdef object _datatype(object kind):
    if isinstance(kind, Datatype):
        return kind
    try:
        return MPI._typedict[kind]
    except KeyError:
        raise KeyError(f"cannot map {kind!r} to MPI datatype") from None


cdef object _datatype_of_format(bytes text):
    if text is None:
        return MPI.BYTE
    if text[:1] in b"@<":
        if text[:1]:
            text = text[1:]
    elif text[:1] == b">":
        raise BufferError(f"format string {text.decode()!r} with non-native byte order")
    return _datatype(text.decode())


cdef _is_type(kind):
    return isinstance(kind, Datatype) or isinstance(kind, str)


# One count and its displacement come as any sequence, counts and displacements as a tuple.
cdef inline bint is_pair(object count, bint vector):
    return isinstance(count, tuple) or not vector and isinstance(count, list)


cdef tuple split(object spec, bint vector):
    """(buffer, count, displacement, type) of a buffer argument, None for what is not given."""
    cdef object buffer, count = None, displacement = None, kind = None
    if PyObject_CheckBuffer(spec):
        buffer = spec
    elif isinstance(spec, (list, tuple)):
        if len(spec) == 2:
            buffer, count = spec
            if _is_type(count):
                count, kind = None, count
            elif is_pair(count, vector):
                count, displacement = count
        elif len(spec) == 3:
            buffer, count, kind = spec
            if is_pair(count, vector):
                count, displacement = count
        elif len(spec) == 4:
            buffer, count, displacement, kind = spec
        else:
            raise ValueError("message: expecting 2 to 4 items")
    elif _has_other_protocol(spec):
        buffer = spec
    else:
        raise TypeError("message: expecting buffer or list/tuple")
    return buffer, count, displacement, kind


cdef Specification locate(object buffer, object kind, bint writable):
    """Where a buffer lies, how long it is, and of which datatype."""
    cdef Specification result = Specification.__new__(Specification)
    cdef _Memory memory
    result.base = NULL
    result.length = 0
    result.message.numpy_type = -1
    if buffer is None or buffer is BOTTOM:
        result.datatype = _datatype(kind)
    else:
        memory = _Memory(buffer, writable, kind is None)
        result.owner = memory
        result.base = memory.address
        result.length = memory.nbytes
        result.datatype = (_datatype(kind) if kind is not None
                           else _datatype_of_format(memory.format))
    return result


cdef Py_ssize_t entries(Specification spec, Py_ssize_t length) except -1:
    """How many elements lie in ``length`` bytes of the buffer."""
    cdef Py_ssize_t extent
    if length == 0:
        return 0
    extent = extent_of(spec.datatype, "cannot infer count")
    if length % extent:
        lower = spec.datatype.Get_extent()[0]
        raise ValueError(f"message: cannot infer count, buffer length {length} is not a "
                         f"multiple of datatype extent {extent} (lb:{lower}, ub:{lower + extent})")
    return length // extent


cdef Specification parse(object spec, bint writable, int blocks=1):
    """Any buffer argument. Raises as mpi4py does: TypeError, ValueError, KeyError, BufferError.

    ``blocks``: the buffer holds so many equal blocks, one behind the other. The result is the
    first; a count that is given is that of one block.
    """
    cdef Specification result
    cdef TypeLayout layout
    cdef Py_ssize_t length, extent, count = 0, displacement, offset = 0
    buffer, given_count, given_displacement, kind = split(spec, False)
    result = locate(buffer, kind, writable)
    length = result.length
    if given_displacement is not None:
        displacement = index(given_displacement)
        if displacement < 0:
            raise ValueError(f"message: negative displacement {displacement}")
        if displacement > 0:
            extent = extent_of(result.datatype, "cannot handle displacement")
            if displacement > length // extent:
                raise ValueError(f"message: displacement {displacement} out of bounds, "
                                 f"number of datatype entries {length // extent}")
            offset = displacement * extent
            length -= offset
    if given_count is not None:
        count = index(given_count)
        if count < 0:
            raise ValueError(f"message: negative count {count}")
        if count > 0 and buffer is None:
            raise ValueError(f"message: buffer is None but count is {count}")
    else:
        count = entries(result, length)
        if blocks > 1:
            if count % blocks:
                raise ValueError(f"message: cannot infer count, number of entries {count} is not "
                                 f"a multiple of required number of blocks {blocks}")
            count //= blocks
    layout = layout_of_type(result.datatype)
    result.count = count
    result.message.address = result.base + offset
    result.message.count = count
    result.message.element_type = layout.element_type
    result.message.nbytes = result.message.count * <size_t> layout.size
    result.contiguous = layout.contiguous
    return result


cdef Specification parse_moved(object spec, bint writable):
    """The same for data that are only moved: a plain array's datatype is not looked up."""
    cdef Specification result
    cdef Message plain
    if not plain_array(spec, writable, &plain):
        return parse(spec, writable)
    result = Specification.__new__(Specification)
    result.message = plain
    result.contiguous = True
    result.owner = spec
    return result


cdef TypeLayout layout_of_type(datatype) except *:
    """Size and extent of a datatype; MPI is not asked about those that the kernels know."""
    cdef TypeLayout layout
    layout.element_type = code_of_type(datatype)
    if layout.element_type >= 0:
        layout.size = layout.extent = element_size(layout.element_type)
        layout.contiguous = True
    elif datatype == MPI.DATATYPE_NULL:
        layout.size = layout.extent = 0
        layout.contiguous = False
    else:
        layout.size = datatype.Get_size()
        lower, layout.extent = datatype.Get_extent()
        layout.contiguous = (datatype.is_predefined and lower == 0
                             and layout.extent == layout.size)
    return layout


cdef Py_ssize_t extent_of(datatype, purpose) except? -1:
    if datatype == MPI.DATATYPE_NULL:
        raise ValueError(f"message: {purpose}, datatype is null")
    lower, extent = datatype.Get_extent()
    if extent <= 0:
        raise ValueError(f"message: {purpose}, datatype extent {extent} "
                         f"(lb:{lower}, ub:{lower + extent})")
    return extent


@cython.freelist(8)
cdef class Specification:
    """One parsed buffer argument."""

    cdef lay_out(self):
        """Look up where the elements' bytes lie. Raises what MPI does for a null or uncommitted
        datatype."""
        if not self.contiguous:
            self.typemap = typemap_of(self.datatype, self.count > 0)

    cdef const Runs *runs(self):
        """NULL: the message's bytes lie in one piece."""
        return NULL if self.typemap is None else &self.typemap.runs

    cdef void place(self, Convertor *convertor):
        start_convertor(convertor, self.message.address, self.runs(), self.message.nbytes)
