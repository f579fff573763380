"""Which pages of a heap are used: extents, best fit, joined when they are freed.

Best fit over segregated free lists with boundary tags (Knuth, TAOCP 1, 2.5). Why not mimalloc or
jemalloc on a heap's region: both keep block headers or page maps inside what they manage, writable
by every peer, and neither is in Python's or the system's libraries: it would have to be vendored
for what is 100 lines for large blocks only.

Numbers of pages only: nothing here touches the memory itself. The caller locks.
"""

from libc.stdint cimport uint32_t


cdef void init_extents(Extents *extents, Extent *at, uint32_t pages) noexcept nogil:
    """All ``pages`` are free, but for page 0. ``at``: as many entries, all zero."""
    extents.at = at
    extents.pages = pages
    tag(extents, 0, 1, USED)
    put_free(extents, 1, pages - 1)


cdef inline int bin_of(uint32_t length) noexcept nogil:
    cdef int i = 0
    while length > 1:
        length >>= 1
        i += 1
    return i


cdef void put_free(Extents *extents, uint32_t first, uint32_t length) noexcept nogil:
    cdef int i = bin_of(length)
    tag(extents, first, length, FREE)
    extents.at[first].previous = NONE
    extents.at[first].next = extents.bins[i]
    if extents.bins[i] != NONE:
        extents.at[extents.bins[i]].previous = first
    extents.bins[i] = first


cdef void take_out(Extents *extents, uint32_t first) noexcept nogil:
    cdef Extent *extent = &extents.at[first]
    if extent.previous != NONE:
        extents.at[extent.previous].next = extent.next
    else:
        extents.bins[bin_of(extent.length)] = extent.next
    if extent.next != NONE:
        extents.at[extent.next].previous = extent.previous


cdef uint32_t best_fit(const Extents *extents, uint32_t length) noexcept nogil:
    """The smallest free extent of at least ``length`` pages, the last freed of equals; or NONE."""
    cdef uint32_t at, best = NONE
    cdef int i
    for i in range(bin_of(length), BINS):
        at = extents.bins[i]
        while at != NONE:
            if extents.at[at].length >= length and (
                    best == NONE or extents.at[at].length < extents.at[best].length):
                best = at
            at = extents.at[at].next
        if best != NONE:
            return best
    return NONE


cdef uint32_t take(Extents *extents, uint32_t length) noexcept nogil:
    """A used extent of exactly ``length`` pages, or NONE."""
    cdef uint32_t first = best_fit(extents, length), whole
    if first == NONE:
        return NONE
    whole = extents.at[first].length
    take_out(extents, first)
    if whole > length:
        put_free(extents, first + length, whole - length)
    tag(extents, first, length, USED)
    return first


cdef void put_back(Extents *extents, uint32_t first, uint32_t length) noexcept nogil:
    """Free an extent, joined with free neighbours."""
    cdef uint32_t behind = first + length
    if behind < extents.pages and not extents.at[behind].used:
        length += extents.at[behind].length
        take_out(extents, behind)
    if not extents.at[first - 1].used:
        length += extents.at[first - 1].length
        first -= extents.at[first - 1].length
        take_out(extents, first)
    put_free(extents, first, length)


cdef void widen(Extents *extents, uint32_t first, uint32_t length, uint32_t more) noexcept nogil:
    """Take ``more`` free pages behind a used extent into it."""
    cdef uint32_t behind = first + length, whole = extents.at[behind].length
    take_out(extents, behind)
    if whole > more:
        put_free(extents, behind + more, whole - more)
    tag(extents, first, length + more, USED)


cdef uint32_t extent_around(const Extents *extents, uint32_t page) noexcept nogil:
    """First page of the extent that holds ``page``, found from the first one on."""
    cdef uint32_t first = 0
    while page - first >= extents.at[first].length:
        first += extents.at[first].length
    return first
