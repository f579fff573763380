from smcoll.coll.pipeline cimport Call, Section


cdef int scan_direct_inline(Call *call) noexcept nogil
cdef int scan_chain_inline(Call *call) noexcept nogil
cdef int scan_direct(Call *call) noexcept nogil
cdef int scan_chain(Call *call) noexcept nogil

# What the form on arrays in shared heaps shares (direct_own).
cdef int copy_in_for_higher(Call *call, Section *section) noexcept nogil
cdef void reduce_vectors(Call *call, Section *section, const void **arrays) noexcept nogil


# How many operands `rank` reduces: those of the ranks before it, its own last unless exclusive.
cdef inline int operands_of(int rank, bint exclusive) noexcept nogil:
    return rank if exclusive else rank + 1
