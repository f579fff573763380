# What a DLPack object in CPU memory comes to. The capsule is kept, not consumed: it and its memory
# end with this object.
cdef class Tensor:
    cdef char *address
    cdef Py_ssize_t nbytes
    cdef bytes format          # as in a buffer request; None: bytes of no type
    cdef bint readonly
    cdef object capsule


cdef Tensor tensor_of(source)
