from smcoll.base.kernels cimport Operation

cdef enum:
    NO_OP = -1                 # not among the predefined operations that we have kernels for


cdef int code_of_op(op) except -2
cdef bint mpi_takes(op, datatype) except -1


cdef class LocalReduction:
    cdef Operation operation
    cdef object op, datatype, failure
    cdef size_t extent
