from libc.stdint cimport uint64_t

cdef enum:
    # A heap's file begins with its header, no array. So offset 0 stands for "not in the heap",
    # and 1 for "nor shall anybody's array be used there in this call".
    STAGED = 0
    STAGED_BY_ALL = 1


# A rank's heap, as this process maps it.
cdef struct HeapView:
    char *base
    size_t size


cdef bint heap_ready() noexcept nogil
cdef void *heap_allocate(size_t nbytes, bint zeroed) noexcept nogil
cdef void heap_free(void *address) noexcept nogil
cdef size_t heap_room(const void *address) noexcept nogil
cdef bint heap_resize(void *address, size_t nbytes) noexcept nogil
cdef void heap_keep(const void *address) noexcept nogil
cdef HeapView own_heap() noexcept nogil


# Where `nbytes` bytes at `address` lie in this rank's heap, or STAGED.
cdef inline uint64_t heap_offset(const HeapView *heap, const void *address,
                                 size_t nbytes) noexcept nogil:
    cdef size_t at = <const char *> address - heap.base
    if heap.base == NULL or <const char *> address < heap.base or nbytes == 0:
        return STAGED
    if at >= heap.size or nbytes > heap.size - at:
        return STAGED
    return at


# The other way round, for an offset that another rank published; NULL unless all of it lies in
# that rank's heap (protocol rule 10).
cdef inline char *heap_address(const HeapView *heap, uint64_t offset, size_t nbytes) noexcept nogil:
    if heap.base == NULL or offset >= heap.size or nbytes > heap.size - offset:
        return NULL
    return heap.base + offset


cdef class PeerHeap:
    cdef HeapView view
    cdef object owner_process
    cdef object __weakref__
