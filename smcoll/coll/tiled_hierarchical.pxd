from smcoll.coll.pipeline cimport Call, Section
from smcoll.sync.domains cimport Holders

cdef enum:
    # Behind STEP_IN.
    STEP_TILE = 2              # our tile is reduced over the domains below ours in the tree
    STEP_RESULT = 3            # our tile of the result is in our region


cdef int allreduce_tiled_hierarchical(Call *call) noexcept nogil
cdef int reduce_tiled_hierarchical(Call *call) noexcept nogil
cdef int copy_in_for_domain(Call *call, Section *section) noexcept nogil
cdef int reduce_in_domain(Call *call, Section *section) noexcept nogil
cdef int reduce_across_domains(Call *call, Section *section) noexcept nogil
cdef void plan_domains(Call *call, int top) noexcept nogil
cdef int heard_holders(Call *call, Section *section, Holders holders, size_t begin, size_t end,
                       int step) noexcept nogil
cdef void copy_from_holders(Call *call, Section *section, size_t begin, size_t end) noexcept nogil
cdef void tile_of(Call *call, Section *section, int parts, int part, size_t *begin,
                  size_t *end) noexcept nogil
