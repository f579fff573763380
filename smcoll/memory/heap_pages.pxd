from libc.stdint cimport uint8_t, uint32_t

cdef size_t PAGE               # bytes
cdef uint32_t HUGE             # pages of a huge one


# A heap's file, as it is mapped, and which of its pages are reserved.
cdef struct HeapPages:
    char *base
    size_t size
    int descriptor
    uint8_t *backed            # one per page: it is reserved
    bint huge                  # the kernel makes huge pages of this file


cdef size_t backed_bytes(const HeapPages *heap, uint32_t first, uint32_t length) noexcept nogil
cdef bint back(HeapPages *heap, uint32_t first, uint32_t length, uint32_t cleared) noexcept nogil
cdef void give_pages_back(HeapPages *heap, uint32_t first, uint32_t length) noexcept nogil
