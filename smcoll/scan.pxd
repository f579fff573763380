from smcoll.kernels cimport Operation
from smcoll.pipeline cimport Call, Section
from smcoll.team cimport Team


cdef int scan_inline(Team *team, const char *send, char *recv, size_t nbytes, size_t elements,
                     const Operation *operation, bint exclusive,
                     const void **sources) noexcept nogil
cdef int scan_inline_chain(Team *team, const char *send, char *recv, size_t nbytes,
                           size_t elements, const Operation *operation,
                           bint exclusive) noexcept nogil
cdef int scan_direct(Call *call, bint exclusive, bint pipelined,
                     size_t section_bytes) noexcept nogil
cdef int scan_chain(Call *call, bint exclusive, bint pipelined,
                    size_t section_bytes) noexcept nogil

# What the form on arrays in shared heaps shares (direct_own).
cdef int copy_in_for_higher(Call *call, Section *section) noexcept nogil
cdef void reduce_vectors(Call *call, Section *section, const void **arrays) noexcept nogil


# How many operands `rank` reduces: those of the ranks before it, its own last unless exclusive.
cdef inline int operands_of(int rank, bint exclusive) noexcept nogil:
    return rank if exclusive else rank + 1
