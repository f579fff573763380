from libc.stdint cimport uint64_t, uintptr_t

from smcoll.interpose.functions cimport word

cdef enum:
    TYPES = 256                # room in the tables; powers of two
    OPS = 64


# A predefined datatype or operation.
cdef struct Basic:
    uintptr_t handle
    size_t size                # bytes of an element, without holes; 0: nothing is here
    int code                   # of the kernels' types or operations, or -1
    uint64_t ops               # a type's: bits of the operations that MPI was seen to take for it


# What the MPI in use calls its predefined objects.
cdef struct Handles:
    uintptr_t bits             # of a word that a handle fills
    uintptr_t null_comm
    word in_place, double_type, sum_op, null_type
    int truncated              # class of the error
    Basic types[TYPES]         # open addressing
    Basic ops[OPS]


cdef Handles known

cdef word handle_of(mpi_object)


cdef inline Basic *look_up(Basic *table, size_t slots, uintptr_t handle) noexcept nogil:
    """Where the handle is, or where there is room for it."""
    cdef size_t i = (handle ^ handle >> 5 ^ handle >> 12) & (slots - 1)
    while table[i].size != 0 and table[i].handle != handle:
        i = (i + 1) & (slots - 1)
    return &table[i]


cdef inline Basic *type_of(word handle) noexcept nogil:
    return look_up(known.types, TYPES, <uintptr_t> handle & known.bits)


cdef inline Basic *op_of(word handle) noexcept nogil:
    return look_up(known.ops, OPS, <uintptr_t> handle & known.bits)
