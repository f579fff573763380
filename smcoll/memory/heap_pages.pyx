"""The pages of a heap: reserved for real before they are handed out, given back to the system.

Reserved by their owner, so that they lie on its NUMA node, and as huge pages where the kernel gives
any. Nothing here locks: an extent's pages belong to who has taken it.
"""

import os

from libc.errno cimport EAGAIN, EINTR
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memchr, memset

from smcoll.memory.huge_pages cimport HUGE_PAGE, RESERVED_AT_ONCE, make_huge

cdef extern from "fcntl.h" nogil:
    int posix_fallocate(int descriptor, long offset, long length) noexcept
    int fallocate(int descriptor, int mode, long offset, long length) noexcept
    enum: FALLOC_FL_PUNCH_HOLE, FALLOC_FL_KEEP_SIZE

cdef enum:
    MADE_HUGE_AT_ONCE = 32 << 20

PAGE = os.sysconf("SC_PAGESIZE")
HUGE = HUGE_PAGE // PAGE


cdef size_t backed_bytes(const HeapPages *heap, uint32_t first, uint32_t length) noexcept nogil:
    cdef uint32_t page
    cdef size_t count = 0
    for page in range(first, first + length):
        count += heap.backed[page]
    return count * PAGE


cdef bint reserve(HeapPages *heap, uint32_t page, uint32_t end) noexcept nogil:
    """Reserve pages that aren't; as huge pages, where these have no other free pages.

    A huge page that is new costs a quarter of what 512 small ones do.
    """
    # The huge pages that lie in here, or whose other pages are reserved already.
    cdef uint32_t start = page - page % HUGE, stop = end - end % HUGE, at
    cdef int error
    if memchr(&heap.backed[start], 0, page - start) != NULL:
        start += HUGE
    if stop < end and memchr(&heap.backed[end], 0, stop + HUGE - end) == NULL:
        stop += HUGE
    if heap.huge and start < stop:
        at = page
        while at < stop:
            if not reserve_each(heap, at, at + 1):
                return False
            at += HUGE - at % HUGE
        error = make_huge(heap.base + <size_t> start * PAGE, <size_t> (stop - start) * PAGE)
        if error != 0 and error != EAGAIN:
            # An older kernel, one that denies them, or no memory in one piece: to ask again and
            # again would cost more than it gains.
            heap.huge = False
    return reserve_each(heap, page, end)


cdef bint reserve_each(HeapPages *heap, uint32_t page, uint32_t end) noexcept nogil:
    cdef uint32_t piece
    cdef int status
    while page < end:
        piece = min(end - page, <uint32_t> (RESERVED_AT_ONCE // PAGE))
        status = EINTR
        while status == EINTR:
            status = posix_fallocate(heap.descriptor, <long> page * PAGE, <long> piece * PAGE)
        if status != 0:
            return False
        page += piece
    return True


cdef bint back(HeapPages *heap, uint32_t first, uint32_t length, uint32_t cleared) noexcept nogil:
    """Reserve the pages of an extent that aren't; of its first ``cleared`` clear those that are."""
    cdef uint32_t page = first, end = first + length, run
    cdef void *found
    while page < end:
        found = memchr(&heap.backed[page], 1 - heap.backed[page], end - page)
        run = end if found == NULL else <uint32_t> (<uint8_t *> found - heap.backed)
        if heap.backed[page]:
            if page < first + cleared:
                memset(heap.base + <size_t> page * PAGE, 0,
                       <size_t> (min(run, first + cleared) - page) * PAGE)
        else:
            run = min(run, page - page % HUGE + <uint32_t> (MADE_HUGE_AT_ONCE // PAGE))
            if not reserve(heap, page, run):
                return False
            memset(&heap.backed[page], 1, run - page)
        page = run
    return True


cdef void give_pages_back(HeapPages *heap, uint32_t first, uint32_t length) noexcept nogil:
    if fallocate(heap.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                 <long> first * PAGE, <long> length * PAGE) == 0:
        memset(&heap.backed[first], 0, length)
