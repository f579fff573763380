from libc.stdint cimport uint32_t

cdef enum:
    BINS = 32
    NONE = 0                   # page 0 is never free: as a link it means "no extent"

# Extent.used
cdef enum:
    FREE = 0
    USED = 1
    KEPT = 2                   # used, for ever: other processes may still write there


# What is known of an extent (a block or a free range), at its first page; `length` and `used` at
# its last page too (the boundary tag by which the one behind it finds its neighbour).
cdef struct Extent:
    uint32_t length            # pages
    uint32_t next, previous    # of the free list
    uint32_t used


# All pages of a heap, each in one extent.
cdef struct Extents:
    Extent *at                 # one per page; private memory, touched where extents begin and end
    uint32_t pages
    uint32_t bins[BINS]        # first free extent of each size class


cdef void init_extents(Extents *extents, Extent *at, uint32_t pages) noexcept nogil
cdef uint32_t take(Extents *extents, uint32_t length) noexcept nogil
cdef void put_back(Extents *extents, uint32_t first, uint32_t length) noexcept nogil
cdef void widen(Extents *extents, uint32_t first, uint32_t length, uint32_t more) noexcept nogil
cdef uint32_t extent_around(const Extents *extents, uint32_t page) noexcept nogil


cdef inline void tag(Extents *extents, uint32_t first, uint32_t length,
                     uint32_t used) noexcept nogil:
    extents.at[first].length = extents.at[first + length - 1].length = length
    extents.at[first].used = extents.at[first + length - 1].used = used
