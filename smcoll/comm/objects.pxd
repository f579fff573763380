from libc.stdint cimport uint64_t

# What stands before an object's bytes.
cdef struct Label:
    uint64_t kind              # one of the KIND_ numbers; KIND_NUMPY + numpy's type number
    uint64_t nbytes            # bytes of the object, behind the label or in the next message

cdef enum:
    KIND_PICKLE = 0
    KIND_NONE = 1
    KIND_BOOL = 2
    KIND_INT = 3
    KIND_FLOAT = 4
    KIND_COMPLEX = 5
    KIND_NUMPY = 64

cdef enum:
    LABEL = 16                 # bytes of a Label
    FIRST_PACKET = 224         # of a bcast: all of it travels, as only the root knows the length
    SHORT_OBJECT = 64          # room for a label and any object that is not pickled
