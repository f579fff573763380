"""What a forked child gets of its parent's heap: copies of all blocks, as they were, in place.
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport uint32_t
from posix.mman cimport (
    MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap,
)
from posix.unistd cimport _exit, close, read

from smcoll.base.kernels cimport copy_bytes
from smcoll.memory.heap_pages cimport PAGE

cdef extern from "sys/mman.h" nogil:
    void *mremap(void *old, size_t old_size, size_t new_size, int flags, void *new) noexcept
    enum: MREMAP_MAYMOVE, MREMAP_FIXED

cdef extern from "fcntl.h" nogil:
    enum: O_CLOEXEC

cdef extern from "unistd.h" nogil:
    int pipe2(int *descriptors, int flags) noexcept

cdef extern from "pthread.h" nogil:
    int pthread_mutex_lock(pthread_mutex_t *mutex) noexcept
    int pthread_mutex_unlock(pthread_mutex_t *mutex) noexcept
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil) noexcept

cdef Forked heap
cdef int[2] ends               # of a pipe between fork's two sides, while it copies


cdef void heed_forks(Forked forked) noexcept nogil:
    """From now on. Once in a process: it has one heap."""
    global heap
    heap = forked
    pthread_atfork(_before_fork, _after_fork_parent, _after_fork_child)


cdef void _before_fork() noexcept nogil:
    if not heap.inherited[0]:
        pthread_mutex_lock(heap.mutex)
        if pipe2(ends, O_CLOEXEC) != 0:
            ends[0] = ends[1] = -1


cdef void _after_fork_parent() noexcept nogil:
    """Wait until the child has its copies (or is dead): what it copies must not change."""
    cdef char end
    if heap.inherited[0]:
        return
    if ends[0] >= 0:
        close(ends[1])
        while read(ends[0], &end, 1) < 0 and errno == EINTR:
            pass
        close(ends[0])
    pthread_mutex_unlock(heap.mutex)


cdef void _after_fork_child() noexcept nogil:
    """What fork means for private memory: the child has all arrays as they were, as its own.

    A private mapping of the same file would not do: the parent's later changes show through in
    pages that the child has not written, and blocks that the parent frees and uses again, too.
    Nothing of the parent's file stays mapped.
    """
    cdef uint32_t page = 1, length
    cdef char *copy
    if heap.inherited[0]:
        return
    # One mapping for all blocks: one for each would end at vm.max_map_count.
    copy = <char *> mmap(NULL, heap.pages.size, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    while copy != <char *> MAP_FAILED and page < heap.extents.pages:
        length = heap.extents.at[page].length
        # Another thread may be about to reserve it: then nobody has it yet.
        if (heap.extents.at[page].used and heap.pages.backed[page]
                and heap.pages.backed[page + length - 1]):
            copy_bytes(copy + <size_t> page * PAGE, heap.pages.base + <size_t> page * PAGE,
                       <size_t> length * PAGE)
        page += length
    if (copy == <char *> MAP_FAILED
            or mremap(copy, heap.pages.size, heap.pages.size, MREMAP_MAYMOVE | MREMAP_FIXED,
                      heap.pages.base) == MAP_FAILED):
        # No address space: as the file is from now on, until it is written here.
        if mmap(heap.pages.base, heap.pages.size, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, heap.pages.descriptor, 0) == MAP_FAILED:
            _exit(127)         # never go on with the parent's arrays
    heap.inherited[0] = True
    close(heap.pages.descriptor)
    if ends[0] >= 0:
        close(ends[0])
        close(ends[1])
    pthread_mutex_unlock(heap.mutex)
