from smcoll.coll.pipeline cimport Call, Section

# How the vector is dealt out.
cdef struct Partition:
    const size_t *begin        # first byte of each rank's block; one more entry for the end
    size_t longest             # bytes of the longest block
    bint in_place              # the vector lies where the result goes


cdef int reduce_scatter_direct_inline(Call *call) noexcept nogil
cdef int reduce_scatter_direct(Call *call) noexcept nogil
cdef size_t piece_of_block(int ranks, size_t section_bytes, size_t element_size) noexcept nogil

# What the form on arrays in shared heaps shares (direct_own).
cdef int copy_in_pieces(Call *call, Section *section) noexcept nogil
cdef void reduce_piece(Call *call, Section *section, const void **arrays) noexcept nogil


# Bytes of `rank`'s block in this section.
cdef inline size_t part_of(const Partition *blocks, Section *section, int rank) noexcept nogil:
    cdef size_t nbytes = blocks.begin[rank + 1] - blocks.begin[rank]
    if nbytes <= section.offset:
        return 0
    return min(section.nbytes, nbytes - section.offset)
