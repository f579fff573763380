"""Huge pages for files in memory (memfd, /dev/shm), on request.

The system's own setting for them (shmem_enabled, or the mount's) is "never" on most machines. A
request (MADV_COLLAPSE, Linux 6.1) does not depend on it.
"""

import os

from libc.errno cimport errno
from posix.mman cimport (
    MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_NONE,
    PROT_READ, PROT_WRITE, mmap, munmap,
)

cdef extern from "sys/mman.h" nogil:
    int madvise(void *start, size_t length, int advice) noexcept

cdef enum:
    MADV_COLLAPSE = 25         # the C library's headers may be older


cdef char *map_at_huge_page(int descriptor, size_t size) except NULL:
    """Map a file, shared, at a huge page's boundary, so that its huge pages are used as such.

    ``size``: bytes, whole pages. OSError where there is no address space.
    """
    cdef char *where = <char *> mmap(NULL, size + HUGE_PAGE, PROT_NONE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    cdef size_t before
    if where == <char *> MAP_FAILED:
        raise OSError(errno, os.strerror(errno))
    before = -<size_t> where % HUGE_PAGE
    if mmap(where + before, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
            descriptor, 0) == MAP_FAILED:
        error = OSError(errno, os.strerror(errno))
        munmap(where, size + HUGE_PAGE)
        raise error
    if before > 0:
        munmap(where, before)
    munmap(where + before + size, HUGE_PAGE - before)
    return where + before


cdef int make_huge(char *start, size_t nbytes) noexcept nogil:
    """Make huge pages of ``[start, start + nbytes)``, whole ones; 0, or the system's error.

    In each of them a page must be there: the kernel knows its place by that. What the others hold
    is kept; those that were not reserved are, as zeros.
    """
    # All at once: each request makes every CPU put away what it has in hand.
    return 0 if madvise(start, nbytes, MADV_COLLAPSE) == 0 else errno
