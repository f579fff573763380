"""The heap of this process that other ranks can map: large blocks in a shared file.

Li, Hoefler & Snir 2013, section 1: "shared-heap techniques ... change the memory allocator to
allocate from shared memory, and no further changes are needed". One file without a name (memfd),
mapped once over its whole, sparse size, so that a block never moves and peers map it once. Blocks
are whole pages. What describes them (the page table below) is private: peers know nothing but
offsets.

Pages are reserved for real before a block is handed out (never a bus error), by the owner, so that
they lie on its NUMA node; where the system, the limit or the cgroup's has no more, the answer is
NULL and the caller allocates privately. Freed pages stay reserved up to KEEP_FREE bytes, the rest
goes back to the system. The heap grows by huge pages where the kernel gives any (see ``reserve``).

Best fit over segregated free lists with boundary tags (Knuth, TAOCP 1, 2.5). Why not mimalloc or
jemalloc on this region: both keep block headers or page maps inside what they manage, writable by
every peer, and neither is in Python's or the system's libraries: it would have to be vendored for
what is 150 lines for large blocks only.

Fork: a child gets copies of all blocks, as they were, at their addresses (see _after_fork_child).
"""

import os

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy, memset
from posix.mman cimport (
    MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_NONE,
    PROT_READ, PROT_WRITE, mmap, munmap,
)
from posix.unistd cimport _exit, close, read

cdef extern from "sys/mman.h" nogil:
    int madvise(void *start, size_t length, int advice) noexcept
    void *mremap(void *old, size_t old_size, size_t new_size, int flags, void *new) noexcept
    enum: MADV_DONTFORK, MADV_DONTNEED, MADV_HUGEPAGE, MREMAP_MAYMOVE, MREMAP_FIXED

cdef extern from "fcntl.h" nogil:
    int posix_fallocate(int descriptor, long offset, long length) noexcept
    int fallocate(int descriptor, int mode, long offset, long length) noexcept
    enum: FALLOC_FL_PUNCH_HOLE, FALLOC_FL_KEEP_SIZE, O_CLOEXEC

cdef extern from "unistd.h" nogil:
    int pipe2(int *descriptors, int flags) noexcept

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*function)(void *) except -1, void *argument) noexcept

cdef extern from "pthread.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes) noexcept
    int pthread_mutex_lock(pthread_mutex_t *mutex) noexcept
    int pthread_mutex_unlock(pthread_mutex_t *mutex) noexcept
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil) noexcept

NONCE_BYTES = 16
cdef size_t PAGE = os.sysconf("SC_PAGESIZE")
cdef bytes _MAGIC = b"smcoll heap\x00\x00\x00\x00\x01"

cdef enum:
    MADV_COLLAPSE = 25         # Linux 6.1; the C library's headers may be older
    RESERVED_AT_ONCE = 4 << 20
    HUGE_PAGE = 2 << 20
    KEEP_FREE = 64 << 20       # bytes of free pages that stay reserved: glibc keeps as much
    GROWTH = 32 << 20          # bytes between two looks at the cgroup's limit
    BINS = 40
    NONE = 0                   # page 0 is the header: as a link it means "no block"

# Extent.used
cdef enum:
    FREE = 0
    USED = 1
    KEPT = 2                   # used, for ever: other processes may still write there


# What is known of an extent (a block or a free range), at its first page; `length` and `used` at
# its last page too (the boundary tag by which the one behind it finds its neighbour).
cdef struct Extent:
    uint32_t length            # pages
    uint32_t next, previous    # of the free list
    uint32_t used


cdef struct Heap:
    char *base
    size_t size
    int descriptor
    bint inherited             # in a forked child: private copies, no new blocks
    bint huge                  # the kernel makes huge pages of this file
    pthread_mutex_t mutex      # guards all below; the GIL is never waited for with it
    Extent *extents            # one per page; private memory, touched where blocks begin and end
    uint8_t *backed            # one per page: it is reserved
    uint32_t pages
    uint32_t bins[BINS]        # first extent of each size class
    size_t limit               # bytes that may be reserved
    size_t reserved, idle      # bytes reserved; of them in no block
    size_t blocks
    size_t looked              # the cgroup had room for so many reserved bytes
    int pipe[2]                # between fork's two sides, while it copies


cdef Heap heap
cdef uint32_t HUGE = HUGE_PAGE // PAGE     # pages of a huge one
cdef bytes _nonce = None
cdef object _headroom = None       # callable: bytes until the cgroup's limit
cdef object _postponed = None      # an exception that Python raises as soon as it may


# ---------------------------------------------------------------------- extents

cdef inline int bin_of(uint32_t length) noexcept nogil:
    cdef int i = 0
    while length > 1:
        length >>= 1
        i += 1
    return i


cdef inline void tag(uint32_t first, uint32_t length, uint32_t used) noexcept nogil:
    heap.extents[first].length = heap.extents[first + length - 1].length = length
    heap.extents[first].used = heap.extents[first + length - 1].used = used


cdef void put_free(uint32_t first, uint32_t length) noexcept nogil:
    cdef int i = bin_of(length)
    tag(first, length, FREE)
    heap.extents[first].previous = NONE
    heap.extents[first].next = heap.bins[i]
    if heap.bins[i] != NONE:
        heap.extents[heap.bins[i]].previous = first
    heap.bins[i] = first


cdef void take_out(uint32_t first) noexcept nogil:
    cdef Extent *extent = &heap.extents[first]
    if extent.previous != NONE:
        heap.extents[extent.previous].next = extent.next
    else:
        heap.bins[bin_of(extent.length)] = extent.next
    if extent.next != NONE:
        heap.extents[extent.next].previous = extent.previous


cdef uint32_t best_fit(uint32_t length) noexcept nogil:
    """The smallest free extent of at least ``length`` pages, the last freed of equals; or NONE."""
    cdef uint32_t at, best = NONE
    cdef int i
    for i in range(bin_of(length), BINS):
        at = heap.bins[i]
        while at != NONE:
            if heap.extents[at].length >= length and (
                    best == NONE or heap.extents[at].length < heap.extents[best].length):
                best = at
            at = heap.extents[at].next
        if best != NONE:
            return best
    return NONE


cdef uint32_t take(uint32_t length) noexcept nogil:
    """A used extent of exactly ``length`` pages, or NONE."""
    cdef uint32_t first = best_fit(length), whole
    if first == NONE:
        return NONE
    whole = heap.extents[first].length
    take_out(first)
    if whole > length:
        put_free(first + length, whole - length)
    tag(first, length, USED)
    return first


cdef void put_back(uint32_t first, uint32_t length) noexcept nogil:
    """Free an extent, joined with free neighbours."""
    cdef uint32_t behind = first + length
    if behind < heap.pages and not heap.extents[behind].used:
        length += heap.extents[behind].length
        take_out(behind)
    if not heap.extents[first - 1].used:
        length += heap.extents[first - 1].length
        first -= heap.extents[first - 1].length
        take_out(first)
    put_free(first, length)


# ---------------------------------------------------------------------- pages

cdef size_t backed_bytes(uint32_t first, uint32_t length) noexcept nogil:
    cdef uint32_t page
    cdef size_t count = 0
    for page in range(first, first + length):
        count += heap.backed[page]
    return count * PAGE


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


cdef bint reserve(uint32_t page, uint32_t end) noexcept nogil:
    """Reserve pages that aren't; as huge pages, where these have no other free pages.

    Asking for a huge page (MADV_COLLAPSE) does not depend on the system's setting for shared
    memory, which is "never" on most; and one that is new costs a quarter of what 512 small ones do.
    """
    # The huge pages that lie in here, or whose other pages are reserved already.
    cdef uint32_t start = page - page % HUGE, stop = end - end % HUGE, at
    if memchr(&heap.backed[start], 0, page - start) != NULL:
        start += HUGE
    if stop < end and memchr(&heap.backed[end], 0, stop + HUGE - end) == NULL:
        stop += HUGE
    if heap.huge and start < stop:
        # The kernel knows the place of a huge page by a page in it.
        at = page
        while at < stop:
            if not reserve_each(at, at + 1):
                return False
            at += HUGE - at % HUGE
        # All at once: each request makes every CPU put away what it has in hand.
        if (madvise(heap.base + <size_t> start * PAGE, <size_t> (stop - start) * PAGE,
                    MADV_COLLAPSE) != 0 and errno != EAGAIN):
            # An older kernel, one that denies them, or no memory in one piece: to ask again and
            # again would cost more than it gains.
            heap.huge = False
    return reserve_each(page, end)


cdef bint reserve_each(uint32_t page, uint32_t end) noexcept nogil:
    cdef uint32_t piece
    cdef int status
    while page < end:
        # Not many at once: before Linux 6.12 any signal undoes all of a call's work.
        piece = min(end - page, <uint32_t> (RESERVED_AT_ONCE // PAGE))
        status = EINTR
        while status == EINTR:
            status = posix_fallocate(heap.descriptor, <long> page * PAGE, <long> piece * PAGE)
        if status != 0:
            return False
        page += piece
    return True


cdef bint back(uint32_t first, uint32_t length, uint32_t cleared) noexcept nogil:
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
            run = min(run, page - page % HUGE + <uint32_t> (GROWTH // PAGE))
            if not reserve(page, run):
                return False
            memset(&heap.backed[page], 1, run - page)
        page = run
    return True


cdef void give_pages_back(uint32_t first, uint32_t length) noexcept nogil:
    if fallocate(heap.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                 <long> first * PAGE, <long> length * PAGE) == 0:
        memset(&heap.backed[first], 0, length)


# ---------------------------------------------------------------------- blocks

cdef bint heap_ready() noexcept nogil:
    return heap.base != NULL and not heap.inherited


cdef inline bint in_heap(const void *address) noexcept nogil:
    return (heap.base != NULL and <const char *> address >= heap.base
            and <const char *> address < heap.base + heap.size)


cdef HeapView own_heap() noexcept nogil:
    cdef HeapView view
    view.base = heap.base if heap_ready() else NULL
    view.size = heap.size
    return view


cdef inline uint32_t page_of(const void *address) noexcept nogil:
    return <uint32_t> ((<const char *> address - heap.base) // PAGE)


cdef inline uint32_t pages_for(size_t nbytes) noexcept nogil:
    return <uint32_t> ((nbytes + PAGE - 1) // PAGE) if nbytes > 0 else 1


cdef uint32_t rest_of_huge_page(uint32_t first, uint32_t length) noexcept nogil:
    """Free pages from a block's end to the next huge page's start, to be reserved with it; or 0.

    Without them the block's last huge page could not be one.
    """
    cdef uint32_t behind = first + length
    cdef uint32_t rest = (HUGE - behind % HUGE) % HUGE
    if (not heap.huge or rest == 0 or heap.idle > KEEP_FREE or heap.extents[behind].used
            or heap.extents[behind].length < rest):
        return 0
    return rest


cdef void widen(uint32_t first, uint32_t length, uint32_t more) noexcept nogil:
    """Take ``more`` free pages behind an extent into it."""
    cdef uint32_t behind = first + length, whole = heap.extents[behind].length
    take_out(behind)
    if whole > more:
        put_free(behind + more, whole - more)
    tag(first, length + more, USED)


cdef void *heap_allocate(size_t nbytes, bint zeroed) noexcept nogil:
    """A block, reserved; NULL where none can be had. Any thread, with or without the GIL."""
    cdef uint32_t length
    cdef bint wide = True
    cdef void *block
    if not heap_ready() or nbytes > heap.size:
        return NULL
    length = pages_for(nbytes)
    block = allocate_pages(length, length if zeroed else 0, &wide)
    if block == NULL and wide:
        # There may be room for the block, though not for the rest of a huge page.
        wide = False
        block = allocate_pages(length, length if zeroed else 0, &wide)
    return block


cdef void *allocate_pages(uint32_t length, uint32_t cleared, bint *wide) noexcept nogil:
    """``cleared``: pages that are to be zero. ``wide``: reserve the rest of a huge page, too; set
    to whether that was asked for.
    """
    cdef uint32_t first, more = 0
    cdef size_t had, missing
    cdef bint look, refused
    pthread_mutex_lock(&heap.mutex)
    first = take(length)
    if first == NONE:
        wide[0] = False
        pthread_mutex_unlock(&heap.mutex)
        return NULL
    had = backed_bytes(first, length)
    missing = <size_t> length * PAGE - had
    if missing > 0:
        if heap.reserved + missing > heap.limit:
            wide[0] = False
            put_back(first, length)
            pthread_mutex_unlock(&heap.mutex)
            return NULL
        if wide[0]:
            more = rest_of_huge_page(first, length)
        if heap.reserved + missing + <size_t> more * PAGE > heap.limit:
            more = 0
        if more > 0:
            widen(first, length, more)
            had += backed_bytes(first + length, more)
            missing = <size_t> (length + more) * PAGE - had
    wide[0] = more > 0
    heap.idle -= had
    heap.reserved += missing
    heap.blocks += 1
    look = missing > 0 and heap.reserved > heap.looked
    pthread_mutex_unlock(&heap.mutex)
    # The extent is ours now: its pages need no mutex.
    refused = look and not may_grow(missing)
    if refused or not back(first, length + more, cleared):
        if not refused:
            give_pages_back(first, length + more)
        pthread_mutex_lock(&heap.mutex)
        had = backed_bytes(first, length + more)
        heap.reserved -= <size_t> (length + more) * PAGE - had
        heap.looked = min(heap.looked, heap.reserved + GROWTH)
        heap.idle += had
        heap.blocks -= 1
        put_back(first, length + more)
        pthread_mutex_unlock(&heap.mutex)
        return NULL
    if more > 0:
        pthread_mutex_lock(&heap.mutex)
        tag(first, length, USED)
        heap.idle += <size_t> more * PAGE
        put_back(first + length, more)
        pthread_mutex_unlock(&heap.mutex)
    return heap.base + <size_t> first * PAGE


cdef void heap_free(void *address) noexcept nogil:
    """Free a block. In a forked child its pages go back to the system, nothing more."""
    cdef uint32_t first = page_of(address)
    if heap.extents[first].used != KEPT:
        free_pages(first, heap.extents[first].length, 1)


cdef void heap_keep(const void *address) noexcept nogil:
    """Never use the memory of the block around ``address`` again.

    For the buffers of a call that failed: its other ranks may not have noticed yet.
    """
    cdef uint32_t wanted, first = 1
    if not in_heap(address) or not heap_ready():
        return
    wanted = page_of(address)
    pthread_mutex_lock(&heap.mutex)
    while wanted - first >= heap.extents[first].length:
        first += heap.extents[first].length
    if heap.extents[first].used:
        tag(first, heap.extents[first].length, KEPT)
    pthread_mutex_unlock(&heap.mutex)


cdef void free_pages(uint32_t first, uint32_t length, int blocks) noexcept nogil:
    cdef size_t nbytes = <size_t> length * PAGE
    cdef bint surplus
    if heap.inherited:
        madvise(heap.base + <size_t> first * PAGE, nbytes, MADV_DONTNEED)
        return
    pthread_mutex_lock(&heap.mutex)
    surplus = heap.idle + nbytes > KEEP_FREE
    pthread_mutex_unlock(&heap.mutex)
    if surplus:
        # Before anybody else can have these pages.
        give_pages_back(first, length)
    pthread_mutex_lock(&heap.mutex)
    surplus = not heap.backed[first]
    if surplus:
        heap.reserved -= nbytes
        heap.looked = min(heap.looked, heap.reserved + GROWTH)
    else:
        heap.idle += nbytes
    heap.blocks -= blocks
    put_back(first, length)
    pthread_mutex_unlock(&heap.mutex)


cdef size_t heap_room(const void *address) noexcept nogil:
    """Bytes of the block at ``address``."""
    return <size_t> heap.extents[page_of(address)].length * PAGE


cdef bint heap_resize(void *address, size_t nbytes) noexcept nogil:
    """Whether the block can have this size where it is; shrinking frees pages."""
    cdef uint32_t first = page_of(address), length = heap.extents[first].length
    cdef uint32_t wanted = pages_for(nbytes)
    if wanted > length:
        return False
    if wanted < length and heap.extents[first].used != KEPT and not heap.inherited:
        pthread_mutex_lock(&heap.mutex)
        tag(first, wanted, USED)
        tag(first + wanted, length - wanted, USED)
        pthread_mutex_unlock(&heap.mutex)
        free_pages(first + wanted, length - wanted, 0)
    return True


# ---------------------------------------------------------------------- fork

cdef void _before_fork() noexcept nogil:
    if heap_ready():
        pthread_mutex_lock(&heap.mutex)
        if pipe2(heap.pipe, O_CLOEXEC) != 0:
            heap.pipe[0] = heap.pipe[1] = -1


cdef void _after_fork_parent() noexcept nogil:
    """Wait until the child has its copies (or is dead): what it copies must not change."""
    cdef char end
    if not heap_ready():
        return
    if heap.pipe[0] >= 0:
        close(heap.pipe[1])
        while read(heap.pipe[0], &end, 1) < 0 and errno == EINTR:
            pass
        close(heap.pipe[0])
    pthread_mutex_unlock(&heap.mutex)


cdef void _after_fork_child() noexcept nogil:
    """What fork means for private memory: the child has all arrays as they were, as its own.

    A private mapping of the same file would not do: the parent's later changes show through in
    pages that the child has not written, and blocks that the parent frees and uses again, too.
    Nothing of the parent's file stays mapped.
    """
    cdef uint32_t page = 1, length
    cdef char *copy
    if not heap_ready():
        return
    # One mapping for all blocks: one for each would end at vm.max_map_count.
    copy = <char *> mmap(NULL, heap.size, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    while copy != <char *> MAP_FAILED and page < heap.pages:
        length = heap.extents[page].length
        # Another thread may be about to reserve it: then nobody has it yet.
        if (heap.extents[page].used and heap.backed[page]
                and heap.backed[page + length - 1]):
            memcpy(copy + <size_t> page * PAGE, heap.base + <size_t> page * PAGE,
                   <size_t> length * PAGE)
        page += length
    if (copy == <char *> MAP_FAILED
            or mremap(copy, heap.size, heap.size, MREMAP_MAYMOVE | MREMAP_FIXED,
                      heap.base) == MAP_FAILED):
        # No address space: as the file is from now on, until it is written here.
        if mmap(heap.base, heap.size, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, heap.descriptor, 0) == MAP_FAILED:
            _exit(127)         # never go on with the parent's arrays
    heap.inherited = True
    close(heap.descriptor)
    if heap.pipe[0] >= 0:
        close(heap.pipe[0])
        close(heap.pipe[1])
    pthread_mutex_unlock(&heap.mutex)


# ---------------------------------------------------------------------- the file

cdef char *map_aligned(int descriptor, size_t size) except NULL:
    """A heap's file, mapped at a huge page's boundary, so that its huge pages are used as such."""
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
    madvise(where + before, size, MADV_HUGEPAGE)
    return where + before


def create(size_t size, size_t limit, headroom):
    """Make this process's heap; nothing where it has one. OSError where it can't be had.

    ``size``: bytes of address space; ``limit``: bytes of memory that may be reserved;
    ``headroom()``: bytes that the system would give beside them, asked from time to time.
    """
    global _nonce, _headroom
    cdef char *base
    cdef char *table
    cdef size_t pages, table_bytes
    if heap.base != NULL:
        return
    size = max(size // HUGE_PAGE, <size_t> 2) * HUGE_PAGE
    pages = size // PAGE
    descriptor = os.memfd_create("smcoll-heap", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        os.posix_fallocate(descriptor, 0, PAGE)
        base = map_aligned(descriptor, size)
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
    heap.extents = <Extent *> table
    heap.backed = <uint8_t *> (table + pages * sizeof(Extent))
    heap.pages = <uint32_t> pages
    heap.size = size
    heap.limit = limit
    heap.descriptor = descriptor
    heap.huge = True
    tag(0, 1, USED)
    heap.backed[0] = 1
    put_free(1, heap.pages - 1)
    heap.base = base
    pthread_atfork(_before_fork, _after_fork_parent, _after_fork_child)


def set_limit(size_t limit):
    """Bytes of memory that this process's heap may reserve from now on."""
    heap.limit = limit


def record():
    """What a peer needs to map this heap; None where there is none (in a forked child, too)."""
    if not heap_ready():
        return None
    return {"process": os.getpid(), "descriptor": heap.descriptor, "size": heap.size,
            "nonce": _nonce.hex()}


def usage():
    """Bytes: ``reserved`` by this process's heap, ``used`` in ``blocks``, and its ``limit``."""
    return {"reserved": heap.reserved, "used": heap.reserved - heap.idle, "blocks": heap.blocks,
            "limit": heap.limit, "address_space": heap.size}


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
            self.view.base = map_aligned(descriptor, facts["size"])
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
        if self.view.base != NULL and os.getpid() == self.owner_process:
            munmap(self.view.base, self.view.size)
