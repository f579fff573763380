from smcoll.datatype.convertor cimport Runs


cdef class Typemap:
    cdef Runs runs
    cdef object offsets, lengths   # numpy arrays that hold the memory

    cdef bint contiguous(self)


cdef Typemap typemap_of(datatype, bint is_used=*)
