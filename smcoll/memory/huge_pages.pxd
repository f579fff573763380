cdef enum:
    HUGE_PAGE = 2 << 20        # bytes; where the system's are larger, it refuses to make one
    # Bytes of a file: before Linux 6.12 any signal undoes all of a call's work, and signals may
    # come every millisecond.
    RESERVED_AT_ONCE = 256 << 10

cdef char *map_at_huge_page(int descriptor, size_t size) except NULL
cdef int make_huge(char *start, size_t nbytes) noexcept nogil
