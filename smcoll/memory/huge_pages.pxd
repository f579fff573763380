cdef enum:
    HUGE_PAGE = 2 << 20        # bytes; where the system's are larger, it refuses to make one

cdef char *map_at_huge_page(int descriptor, size_t size) except NULL
cdef int make_huge(char *start, size_t nbytes) noexcept nogil
