from smcoll.coll.pipeline cimport Call, Section

cdef enum:
    CACHE_LINE = 64            # tiles are cut at cache lines
    STEP_RESULT = 2            # behind STEP_IN: our slice of the result is in our region


# Where part `part` of `parts` of a vector begins, in bytes; `part` = parts: its end. An element
# whose size does not divide a line is not cut.
cdef inline size_t cut(size_t nbytes, size_t element_size, int parts, int part) noexcept nogil:
    cdef size_t unit = CACHE_LINE if CACHE_LINE % element_size == 0 else element_size
    cdef size_t units = (nbytes + unit - 1) // unit
    cdef size_t at = units * <size_t> part // <size_t> parts * unit
    return at if at < nbytes else nbytes


# Start of `rank`'s slice in bytes; `rank` = ranks gives the end of the last one.
cdef inline size_t tile(Call *call, Section *section, int rank) noexcept nogil:
    return cut(section.nbytes, call.element_size, call.team.size, rank)


cdef int allreduce_tiled(Call *call) noexcept nogil
cdef int reduce_tiled(Call *call) noexcept nogil
cdef int copy_in_others(Call *call, Section *section) noexcept nogil
cdef int copy_out_others(Call *call, Section *section) noexcept nogil
