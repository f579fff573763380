"""The heap of this process that other ranks can map: large blocks in a shared file.

Li, Hoefler & Snir 2013, section 1: "shared-heap techniques ... change the memory allocator to
allocate from shared memory, and no further changes are needed". One file without a name (memfd),
mapped once over its whole, sparse size, so that a block never moves and peers map it once. Blocks
are whole pages. What describes them (the page table below) is private: peers know nothing but
offsets.

Pages are reserved for real before a block is handed out (never a bus error, ``heap_pages``); where
the system, the limit or the cgroup's has no more, the answer is NULL and the caller allocates
privately. Freed pages stay reserved up to KEEP_FREE bytes, the rest goes back to the system.
"""

import os

from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcmp, memcpy
from posix.mman cimport (
    MAP_ANONYMOUS, MAP_FAILED, MAP_NORESERVE, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap, munmap,
)
from posix.unistd cimport getpid

from smcoll.memory.extents cimport (
    KEPT, NONE, USED, Extent, Extents, extent_around, init_extents, put_back, tag, take, widen,
)
from smcoll.memory.heap_fork cimport Forked, heed_forks, pthread_mutex_t
from smcoll.memory.heap_pages cimport HUGE, PAGE, HeapPages, back, backed_bytes, give_pages_back
from smcoll.memory.huge_pages cimport HUGE_PAGE, map_at_huge_page

cdef extern from "sys/mman.h" nogil:
    int madvise(void *start, size_t length, int advice) noexcept
    enum: MADV_DONTFORK, MADV_DONTNEED, MADV_HUGEPAGE

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*function)(void *) except -1, void *argument) noexcept

cdef extern from "pthread.h" nogil:
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes) noexcept
    int pthread_mutex_lock(pthread_mutex_t *mutex) noexcept
    int pthread_mutex_unlock(pthread_mutex_t *mutex) noexcept

NONCE_BYTES = 16
cdef bytes _MAGIC = b"smcoll heap\x00\x00\x00\x00\x01"

cdef enum:
    KEEP_FREE = 64 << 20       # bytes of free pages that stay reserved: glibc keeps as much
    GROWTH = 32 << 20          # bytes between two looks at the cgroup's limit


cdef struct Heap:
    HeapPages pages            # base is NULL where there is no heap
    bint inherited             # in a forked child: private copies, no new blocks
    pthread_mutex_t mutex      # guards all below; the GIL is never waited for with it
    Extents extents
    size_t limit               # bytes that may be reserved
    size_t reserved, idle      # bytes reserved; of them in no block
    size_t blocks
    size_t looked              # the cgroup had room for so many reserved bytes


# An extent on its way to become a block.
cdef struct Taken:
    uint32_t first             # NONE: there is none
    uint32_t length            # pages
    size_t missing             # bytes that are to be reserved
    bint look                  # ask first whether the cgroup has room for them


cdef Heap heap
cdef bytes _nonce = None
cdef object _headroom = None       # callable: bytes until the cgroup's limit
cdef object _postponed = None      # an exception that Python raises as soon as it may


# ---------------------------------------------------------------------- the cgroup's limit

cdef int raise_postponed(void *unused) except -1:
    global _postponed
    error, _postponed = _postponed, None
    if error is not None:
        raise error
    return 0


cdef bint may_grow(size_t nbytes) noexcept with gil:
    """Whether the cgroup has room for ``nbytes`` more. Called without the mutex: takes the GIL."""
    global _postponed
    cdef double room
    try:
        room = _headroom()
    except MemoryError:
        return False
    except BaseException as error:
        # A signal handler's (Ctrl-C), which numpy could not pass on: raised once it has returned.
        _postponed = error
        Py_AddPendingCall(raise_postponed, NULL)
        return False
    if room < nbytes:
        return False
    pthread_mutex_lock(&heap.mutex)
    heap.looked = heap.reserved + <size_t> min(room - nbytes, <double> GROWTH)
    pthread_mutex_unlock(&heap.mutex)
    return True


# ---------------------------------------------------------------------- blocks

cdef bint heap_ready() noexcept nogil:
    return heap.pages.base != NULL and not heap.inherited


cdef inline bint in_heap(const void *address) noexcept nogil:
    return (heap.pages.base != NULL and <const char *> address >= heap.pages.base
            and <const char *> address < heap.pages.base + heap.pages.size)


cdef HeapView own_heap() noexcept nogil:
    cdef HeapView view
    view.base = heap.pages.base if heap_ready() else NULL
    view.size = heap.pages.size
    return view


cdef inline uint32_t page_of(const void *address) noexcept nogil:
    return <uint32_t> ((<const char *> address - heap.pages.base) // PAGE)


cdef inline uint32_t pages_for(size_t nbytes) noexcept nogil:
    return <uint32_t> ((nbytes + PAGE - 1) // PAGE) if nbytes > 0 else 1


cdef uint32_t rest_of_huge_page(uint32_t first, uint32_t length) noexcept nogil:
    """Free pages from a block's end to the next huge page's start, to be reserved with it; or 0.

    Without them the block's last huge page could not be one.
    """
    cdef uint32_t behind = first + length
    cdef uint32_t rest = (HUGE - behind % HUGE) % HUGE
    if (not heap.pages.huge or rest == 0 or heap.idle > KEEP_FREE or heap.extents.at[behind].used
            or heap.extents.at[behind].length < rest):
        return 0
    return rest


cdef void *heap_allocate(size_t nbytes, bint zeroed) noexcept nogil:
    """A block, reserved; NULL where none can be had. Any thread, with or without the GIL."""
    cdef uint32_t length
    if not heap_ready() or nbytes > heap.pages.size:
        return NULL
    length = pages_for(nbytes)
    return allocate_pages(length, length if zeroed else 0, True)


cdef void *allocate_pages(uint32_t length, uint32_t cleared, bint wide) noexcept nogil:
    """A block whose first ``cleared`` pages are zero. ``wide``: complete its last huge page."""
    cdef Taken taken = take_pages(length, wide)
    cdef bint refused
    if taken.first == NONE:
        return NULL
    # The extent is ours now: its pages need no mutex.
    refused = taken.look and not may_grow(taken.missing)
    if refused or not back(&heap.pages, taken.first, taken.length, cleared):
        if not refused:
            give_pages_back(&heap.pages, taken.first, taken.length)
        return_pages(&taken)
        # There may be room for the block, though not for the rest of a huge page.
        return allocate_pages(length, cleared, False) if taken.length > length else NULL
    if taken.length > length:
        pthread_mutex_lock(&heap.mutex)
        tag(&heap.extents, taken.first, length, USED)
        heap.idle += <size_t> (taken.length - length) * PAGE
        put_back(&heap.extents, taken.first + length, taken.length - length)
        pthread_mutex_unlock(&heap.mutex)
    return heap.pages.base + <size_t> taken.first * PAGE


cdef Taken take_pages(uint32_t length, bint wide) noexcept nogil:
    """An extent of ``length`` pages, or some more if ``wide``, accounted as reserved."""
    cdef Taken taken
    cdef uint32_t more = 0
    cdef size_t had
    pthread_mutex_lock(&heap.mutex)
    taken.first = take(&heap.extents, length)
    if taken.first == NONE:
        pthread_mutex_unlock(&heap.mutex)
        return taken
    had = backed_bytes(&heap.pages, taken.first, length)
    taken.missing = <size_t> length * PAGE - had
    if taken.missing > 0:
        if heap.reserved + taken.missing > heap.limit:
            put_back(&heap.extents, taken.first, length)
            taken.first = NONE
            pthread_mutex_unlock(&heap.mutex)
            return taken
        if wide:
            more = rest_of_huge_page(taken.first, length)
        if heap.reserved + taken.missing + <size_t> more * PAGE > heap.limit:
            more = 0
        if more > 0:
            widen(&heap.extents, taken.first, length, more)
            had += backed_bytes(&heap.pages, taken.first + length, more)
            taken.missing = <size_t> (length + more) * PAGE - had
    taken.length = length + more
    heap.idle -= had
    heap.reserved += taken.missing
    heap.blocks += 1
    taken.look = taken.missing > 0 and heap.reserved > heap.looked
    pthread_mutex_unlock(&heap.mutex)
    return taken


cdef void return_pages(const Taken *taken) noexcept nogil:
    """Undo ``take_pages``; pages that were reserved meanwhile stay idle."""
    cdef size_t had
    pthread_mutex_lock(&heap.mutex)
    had = backed_bytes(&heap.pages, taken.first, taken.length)
    heap.reserved -= <size_t> taken.length * PAGE - had
    heap.looked = min(heap.looked, heap.reserved + GROWTH)
    heap.idle += had
    heap.blocks -= 1
    put_back(&heap.extents, taken.first, taken.length)
    pthread_mutex_unlock(&heap.mutex)


cdef void heap_free(void *address) noexcept nogil:
    """Free a block. In a forked child its pages go back to the system, nothing more."""
    cdef uint32_t first = page_of(address)
    if heap.extents.at[first].used != KEPT:
        free_pages(first, heap.extents.at[first].length, 1)


cdef void heap_keep(const void *address) noexcept nogil:
    """Never use the memory of the block around ``address`` again.

    For the buffers of a call that failed: its other ranks may not have noticed yet.
    """
    cdef uint32_t first
    if not in_heap(address) or not heap_ready():
        return
    pthread_mutex_lock(&heap.mutex)
    first = extent_around(&heap.extents, page_of(address))
    if heap.extents.at[first].used:
        tag(&heap.extents, first, heap.extents.at[first].length, KEPT)
    pthread_mutex_unlock(&heap.mutex)


cdef void free_pages(uint32_t first, uint32_t length, int blocks) noexcept nogil:
    cdef size_t nbytes = <size_t> length * PAGE
    cdef bint surplus
    if heap.inherited:
        madvise(heap.pages.base + <size_t> first * PAGE, nbytes, MADV_DONTNEED)
        return
    pthread_mutex_lock(&heap.mutex)
    surplus = heap.idle + nbytes > KEEP_FREE
    pthread_mutex_unlock(&heap.mutex)
    if surplus:
        # Before anybody else can have these pages.
        give_pages_back(&heap.pages, first, length)
    pthread_mutex_lock(&heap.mutex)
    surplus = not heap.pages.backed[first]
    if surplus:
        heap.reserved -= nbytes
        heap.looked = min(heap.looked, heap.reserved + GROWTH)
    else:
        heap.idle += nbytes
    heap.blocks -= blocks
    put_back(&heap.extents, first, length)
    pthread_mutex_unlock(&heap.mutex)


cdef size_t heap_room(const void *address) noexcept nogil:
    """Bytes of the block at ``address``."""
    return <size_t> heap.extents.at[page_of(address)].length * PAGE


cdef bint heap_resize(void *address, size_t nbytes) noexcept nogil:
    """Whether the block can have this size where it is; shrinking frees pages."""
    cdef uint32_t first = page_of(address), length = heap.extents.at[first].length
    cdef uint32_t wanted = pages_for(nbytes)
    if wanted > length:
        return False
    if wanted < length and heap.extents.at[first].used != KEPT and not heap.inherited:
        pthread_mutex_lock(&heap.mutex)
        tag(&heap.extents, first, wanted, USED)
        tag(&heap.extents, first + wanted, length - wanted, USED)
        pthread_mutex_unlock(&heap.mutex)
        free_pages(first + wanted, length - wanted, 0)
    return True


# ---------------------------------------------------------------------- the file

def create(size_t size, size_t limit, headroom):
    """Make this process's heap; nothing where it has one. OSError where it can't be had.

    ``size``: bytes of address space; ``limit``: bytes of memory that may be reserved;
    ``headroom()``: bytes that the system would give beside them, asked from time to time.
    """
    global _nonce, _headroom
    cdef char *base
    cdef char *table
    cdef size_t pages, table_bytes
    cdef Forked forked
    if heap.pages.base != NULL:
        return
    size = max(size // HUGE_PAGE, <size_t> 2) * HUGE_PAGE
    pages = size // PAGE
    descriptor = os.memfd_create("smcoll-heap", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        os.posix_fallocate(descriptor, 0, PAGE)
        base = map_at_huge_page(descriptor, size)
        madvise(base, size, MADV_HUGEPAGE)
        table_bytes = pages * (sizeof(Extent) + 1)
        table = <char *> mmap(NULL, table_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        if table == <char *> MAP_FAILED:
            error = OSError(errno, os.strerror(errno))
            munmap(base, size)
            raise error
    except BaseException:
        os.close(descriptor)
        raise
    _nonce = os.urandom(NONCE_BYTES)
    _headroom = headroom
    memcpy(base, <const char *> _MAGIC, 16)
    memcpy(base + 16, <const char *> _nonce, NONCE_BYTES)
    pthread_mutex_init(&heap.mutex, NULL)
    init_extents(&heap.extents, <Extent *> table, <uint32_t> pages)
    heap.limit = limit
    heap.pages.size = size
    heap.pages.descriptor = descriptor
    heap.pages.backed = <uint8_t *> (table + pages * sizeof(Extent))
    heap.pages.backed[0] = 1
    heap.pages.huge = True
    heap.pages.base = base
    forked.pages, forked.extents = &heap.pages, &heap.extents
    forked.mutex, forked.inherited = &heap.mutex, &heap.inherited
    heed_forks(forked)


def set_limit(size_t limit):
    """Bytes of memory that this process's heap may reserve from now on."""
    heap.limit = limit


def record():
    """What a peer needs to map this heap; None where there is none (in a forked child, too)."""
    if not heap_ready():
        return None
    return {"process": os.getpid(), "descriptor": heap.pages.descriptor, "size": heap.pages.size,
            "nonce": _nonce.hex()}


def usage():
    """Bytes: ``reserved`` by this process's heap, ``used`` in ``blocks``, and its ``limit``."""
    return {"reserved": heap.reserved, "used": heap.reserved - heap.idle, "blocks": heap.blocks,
            "limit": heap.limit, "address_space": heap.pages.size}


# ---------------------------------------------------------------------- other ranks' heaps

cdef class PeerHeap:
    """Another process's heap, mapped here. Unmapped when nobody has this object any more."""

    def __cinit__(self, facts):
        """``facts``: the peer's ``record()``. OSError unless it is that very heap."""
        self.owner_process = os.getpid()
        descriptor = os.open(f"/proc/{facts['process']}/fd/{facts['descriptor']}",
                             os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size != facts["size"]:
                raise OSError(0, f"process {facts['process']} has another heap")
            self.view.base = map_at_huge_page(descriptor, facts["size"])
            madvise(self.view.base, facts["size"], MADV_HUGEPAGE)
            self.view.size = facts["size"]
        finally:
            os.close(descriptor)
        nonce = bytes.fromhex(facts["nonce"])
        if (memcmp(self.view.base, <const char *> _MAGIC, 16) != 0
                or memcmp(self.view.base + 16, <const char *> nonce, NONCE_BYTES) != 0):
            raise OSError(0, f"process {facts['process']} has another heap")
        # A forked child has no business there.
        madvise(self.view.base, self.view.size, MADV_DONTFORK)

    def __dealloc__(self):
        # (Late in the interpreter's end, too, when `os` is gone.)
        if self.view.base != NULL and getpid() == self.owner_process:
            munmap(self.view.base, self.view.size)
