from smcoll.datatype.convertor cimport Convertor, Runs
from smcoll.datatype.datatypes cimport Typemap

# What a buffer argument comes to. `element_type` is a code of smcoll.base.kernels, or -1.
cdef struct Message:
    char *address
    size_t count               # elements of the datatype
    size_t nbytes              # bytes of the type signature: count * size of the datatype
    int element_type
    int numpy_type             # numpy's number of the element type; -1 where not a plain array


# What the addresses and bytes of a datatype's elements follow from; all 0 for DATATYPE_NULL.
cdef struct TypeLayout:
    Py_ssize_t size            # bytes of the type signature
    Py_ssize_t extent          # from one element to the next
    int element_type
    bint contiguous            # known to have no holes


cdef class Specification:
    # A buffer argument in full: what Message can't hold, and what keeps the memory alive.
    cdef Message message
    cdef readonly object datatype
    cdef readonly object count
    cdef readonly bint contiguous   # the datatype has no holes: its bytes are the message
    cdef object owner
    cdef char *base
    cdef Py_ssize_t length          # bytes of the whole buffer
    cdef Typemap typemap            # once laid out, of a datatype that may have holes; else None

    cdef lay_out(self)
    cdef const Runs *runs(self)
    cdef void place(self, Convertor *convertor)


cdef object Datatype, BOTTOM           # MPI's
cdef char *IN_PLACE_ADDRESS

cdef bint in_place(argument) noexcept
cdef bint plain_array(object spec, bint writable, Message *message) noexcept
cdef tuple split(object spec, bint vector)
cdef Specification locate(object buffer, object kind, bint writable)
cdef Py_ssize_t entries(Specification spec, Py_ssize_t length) except -1
cdef Py_ssize_t extent_of(datatype, purpose) except? -1
cdef Specification parse(object spec, bint writable, int blocks=*)
cdef Specification parse_moved(object spec, bint writable)
cdef TypeLayout layout_of_type(datatype) except *
cdef int code_of_type(datatype)
