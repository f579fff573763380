from smcoll.coll.pipeline cimport Call
from smcoll.sync.team cimport Team

cdef enum:
    MAX_ALGORITHMS = 16        # of one collective


cdef bint is_inline(const Team *team, int collective, int algorithm, size_t nbytes) noexcept nogil
cdef bint needs_data_regions(const Team *team, int collective, int algorithm,
                             size_t nbytes) noexcept nogil
cdef int run_collective(Call *call, int collective) noexcept nogil
