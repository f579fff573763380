from smcoll.barrier cimport Team
from smcoll.kernels cimport Operation
from smcoll.pipeline cimport Call

# How the vector is dealt out.
cdef struct Blocks:
    const size_t *begin        # first byte of each rank's block; one more entry for the end
    size_t longest             # bytes of the longest block
    bint in_place              # the vector lies where the result goes


cdef int reduce_scatter_inline(Team *team, const char *send, char *recv, const Blocks *blocks,
                               size_t element_size, const Operation *operation,
                               const void **sources) noexcept nogil
cdef int reduce_scatter_direct(Call *call, const Blocks *blocks, bint pipelined,
                               size_t section_bytes) noexcept nogil
cdef size_t piece_of_block(int ranks, size_t section_bytes, size_t element_size) noexcept nogil
