"""What a forked child gets of its parent's heap: copies of all blocks, as they were, in place.
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport uint32_t
from libc.string cimport strlen
from posix.mman cimport (
    MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, PROT_NONE, PROT_READ,
    PROT_WRITE, mmap,
)
from posix.unistd cimport _exit, close, read, write

from smcoll.base.kernels cimport copy_bytes
from smcoll.memory.heap_pages cimport PAGE

cdef extern from "sys/mman.h" nogil:
    void *mremap(void *old, size_t old_size, size_t new_size, int flags, void *new) noexcept
    enum: MREMAP_MAYMOVE, MREMAP_FIXED

cdef extern from "fcntl.h" nogil:
    int fcntl(int descriptor, int command, ...) noexcept
    enum: O_CLOEXEC, F_DUPFD_CLOEXEC

cdef extern from "unistd.h" nogil:
    int pipe2(int *descriptors, int flags) noexcept

cdef extern from "pthread.h" nogil:
    int pthread_mutex_lock(pthread_mutex_t *mutex) noexcept
    int pthread_mutex_unlock(pthread_mutex_t *mutex) noexcept
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil) noexcept

cdef Forked heap
cdef int[2] ends               # of a pipe between fork's two sides, while it copies
cdef int[2] spare              # descriptors, so that there are some for it


cdef void heed_forks(Forked forked) noexcept nogil:
    """From now on. Once in a process: it has one heap."""
    global heap
    heap = forked
    ends[0] = ends[1] = spare[0] = spare[1] = -1
    keep_spare_descriptors()
    pthread_atfork(_before_fork, _after_fork_parent, _after_fork_child)


cdef void keep_spare_descriptors() noexcept nogil:
    cdef int i
    for i in range(2):
        if spare[i] < 0:
            spare[i] = fcntl(heap.pages.descriptor, F_DUPFD_CLOEXEC, 0)


cdef void close_both(int *descriptors) noexcept nogil:
    cdef int i
    for i in range(2):
        if descriptors[i] >= 0:
            close(descriptors[i])
        descriptors[i] = -1


cdef void _before_fork() noexcept nogil:
    if not heap.inherited[0]:
        pthread_mutex_lock(heap.mutex)
        close_both(spare)
        if pipe2(ends, O_CLOEXEC) != 0:
            ends[0] = ends[1] = -1


cdef void _after_fork_parent() noexcept nogil:
    """Wait until the child has its copies (or is dead): what it copies must not change."""
    cdef char end
    if heap.inherited[0]:
        return
    if ends[0] >= 0:
        close(ends[1])
        ends[1] = -1
        while read(ends[0], &end, 1) < 0 and errno == EINTR:
            pass
    close_both(ends)
    keep_spare_descriptors()
    pthread_mutex_unlock(heap.mutex)


cdef void _after_fork_child() noexcept nogil:
    """What fork means for private memory: the child has all arrays as they were, as its own.

    A private mapping of the same file would not do: the parent's later changes show through in
    pages that the child has not written, and blocks that the parent frees and uses again, too.
    Nothing of the parent's file stays mapped. A child that can't have copies ends at once.
    """
    cdef uint32_t page = 1, used = 1, length
    cdef size_t nbytes
    cdef char *copy
    if heap.inherited[0]:
        return
    if ends[0] < 0:
        end_child("no descriptors to make the parent wait")
    while page < heap.extents.pages:
        if is_taken(page):
            used = page + heap.extents.at[page].length
        page += heap.extents.at[page].length
    # Not as large as the heap may become, which is all of the machine's memory. One mapping for
    # all blocks: one for each would end at vm.max_map_count.
    nbytes = <size_t> used * PAGE
    copy = <char *> mmap(NULL, nbytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    if copy == <char *> MAP_FAILED:
        end_child("no memory")
    page = 1
    while page < used:
        length = heap.extents.at[page].length
        if is_taken(page):
            copy_bytes(copy + <size_t> page * PAGE, heap.pages.base + <size_t> page * PAGE,
                       <size_t> length * PAGE)
        page += length
    # Behind them nothing else may be mapped later: it would be taken for the heap's.
    if (mremap(copy, nbytes, nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, heap.pages.base) == MAP_FAILED
            or nbytes < heap.pages.size
            and mmap(heap.pages.base + nbytes, heap.pages.size - nbytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0)
            == MAP_FAILED):
        end_child("no address space")
    heap.inherited[0] = True
    close(heap.pages.descriptor)
    close_both(ends)
    pthread_mutex_unlock(heap.mutex)


cdef inline bint is_taken(uint32_t page) noexcept nogil:
    """Has somebody the block that begins there? If another thread was about to reserve it, no."""
    return (heap.extents.at[page].used and heap.pages.backed[page]
            and heap.pages.backed[page + heap.extents.at[page].length - 1])


cdef void end_child(const char *reason) noexcept nogil:
    """Rather than go on with arrays that the parent changes."""
    cdef const char *text = "smcoll: a forked child can't have its parent's arrays in the heap: "
    write(2, text, strlen(text))
    write(2, reason, strlen(reason))
    write(2, "\n", 1)
    _exit(127)
