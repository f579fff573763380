"""What the model's parameters are measured with: primitive steps of the algorithms, timed alone.

Ranks share a piece of memory each (a page of flags, then a ring of regions); who reads and who
writes is the caller's choice, the same on all ranks that take part. One flag per rank, stored by
its owner with release after the data, loaded by the others with acquire before they read; its
values are (epoch, step) and only grow. Every rank waits for all others after each step, so nothing
is overwritten before it has been read, and no step overlaps another.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free

from smcoll.base.atomics cimport cpu_pause, load_acquire, monotonic_ns, store_release
from smcoll.base.kernels cimport (
    OP_SUM, STORES_STRING, TYPE_DOUBLE, best_instruction_set, copy_bytes, copy_stored,
    reduction_kernel, reduction_kernel_for,
)

cdef extern from "<sched.h>" nogil:
    int sched_yield()

FLAGS = 4096               # bytes before the ring
REGION = 128 << 10         # as Config.segment_size
REGIONS = 32               # as banks x segments, and as many for what POST posts
COPY, REDUCE, POST = range(3)

cdef enum:
    FLAG_BYTES = 4096
    REGION_BYTES = 131072
    RING = 32
    WARM_UP = 4
    COPIED = 0
    REDUCED = 1
    POSTED = 2


cdef class Probe:
    """One rank's view of everybody's memory: ``shared[r]`` of FLAGS + REGIONS * REGION bytes."""

    cdef Py_buffer *views
    cdef int held
    cdef int rank
    cdef uint64_t *own
    cdef reduction_kernel kernel

    def __cinit__(self, list shared, int rank):
        self.views = <Py_buffer *> calloc(len(shared), sizeof(Py_buffer))
        if self.views == NULL:
            raise MemoryError()
        for buffer in shared:
            PyObject_GetBuffer(buffer, &self.views[self.held], PyBUF_SIMPLE | PyBUF_WRITABLE)
            self.held += 1
            if self.views[self.held - 1].len < FLAG_BYTES + RING * REGION_BYTES:
                raise ValueError("a shared buffer is too short")
        self.rank = rank
        self.own = <uint64_t *> self.views[rank].buf
        self.kernel = reduction_kernel_for(OP_SUM, TYPE_DOUBLE, best_instruction_set())

    def __dealloc__(self):
        for i in range(self.held):
            PyBuffer_Release(&self.views[i])
        free(self.views)

    cdef char *region(self, int rank, uint64_t slot) noexcept nogil:
        return <char *> self.views[rank].buf + FLAG_BYTES + (slot % RING) * REGION_BYTES

    cdef void reach(self, uint64_t value) noexcept nogil:
        """Say that this rank is at ``value``, and wait until all are."""
        cdef int other
        store_release(self.own, value)
        for other in range(self.held):
            while <int64_t> (load_acquire(<uint64_t *> self.views[other].buf) - value) < 0:
                cpu_pause()

    def exchange(self, int other, uint64_t epoch, int rounds, int blocks):
        """ns until two ranks that write a line at the same time have each seen the other's.

        A list: the mean of ``rounds`` for each block.
        """
        return hand_over(self.own, <uint64_t *> self.views[other].buf, epoch << 32, True, rounds,
                         blocks)

    def sections(self, uint64_t epoch, source, send, recv, data, more, Py_ssize_t nbytes,
                 Py_ssize_t section, int passes, bint copies, bint reads, int what,
                 bint turns):
        """ns of each pass: ([new data], [copying in], [reading]) of ``nbytes`` in sections.

        All ranks call it. Before each pass ``data`` or ``more``, by turns, goes into ``send``, as a
        program computes new values. Who ``copies`` copies the section of ``send`` into its region;
        then who ``reads`` does ``what`` with that of rank ``source``: copies it into ``recv``
        (COPY), adds it to its own into ``recv`` (REDUCE), or adds it into its own second region,
        which ``source`` then copies (POST). ``turns``: in every other pass who copied reads, and
        the other way round, as where roots rotate.
        """
        cdef const char[::1] even = data
        cdef const char[::1] odd = more
        cdef char[::1] own = send
        cdef char[::1] result = recv
        cdef uint64_t value = epoch << 32, slot = 0
        cdef int64_t began, clock = clock_cost(), fresh, inside, outside
        cdef int at, giver = source
        cdef bint taken
        cdef Py_ssize_t offset, length
        cdef const void *operands[2]
        if not 0 < section <= REGION_BYTES or nbytes < 8 or own.shape[0] < nbytes or (
                min(even.shape[0], odd.shape[0]) < nbytes or result.shape[0] < nbytes):
            raise ValueError("sizes do not fit")
        renewing, copying, reading = [], [], []
        for at in range(passes + WARM_UP):
            if turns and at > 0:
                taken = copies
                copies = reads
                reads = taken
            with nogil:
                began = monotonic_ns()
                copy_bytes(&own[0], &odd[0] if at & 1 else &even[0], nbytes)
                fresh = monotonic_ns() - began - clock
                inside = outside = 0
                offset = 0
                value += 1
                self.reach(value)
                while offset < nbytes:
                    length = min(section, nbytes - offset)
                    if copies:
                        began = monotonic_ns()
                        copy_stored(STORES_STRING, self.region(self.rank, slot), &own[offset],
                                    length)
                        inside += monotonic_ns() - began - clock
                    value += 1
                    self.reach(value)
                    if reads:
                        operands[0] = &own[offset]
                        operands[1] = self.region(giver, slot)
                        began = monotonic_ns()
                        if what == COPIED:
                            copy_bytes(&result[offset], operands[1], length)
                        elif what == REDUCED:
                            self.kernel(&result[offset], operands, 2, length // 8)
                        else:
                            self.kernel(self.region(self.rank, slot + 1), operands, 2, length // 8)
                        outside += monotonic_ns() - began - clock
                    value += 1
                    self.reach(value)
                    if reads and what == POSTED:
                        copy_bytes(&result[offset], self.region(giver, slot + 1), length)
                    slot += 2
                    offset += length
            if at >= WARM_UP:
                renewing.append(max(0, fresh))
                if copies:
                    copying.append(max(0, inside))
                if reads:
                    reading.append(max(0, outside))
        return renewing, copying, reading


cdef int64_t clock_cost() noexcept nogil:
    """ns of reading the clock: part of every interval."""
    cdef int64_t least = 1000, start, elapsed
    cdef int _i
    for _i in range(100):
        start = monotonic_ns()
        elapsed = monotonic_ns() - start
        least = min(least, elapsed)
    return least


def bounce(words, int me, int rounds, int blocks):
    """ns for a line from one thread to another and back: the mean of ``rounds`` for each block.

    Called by both, as 0 and 1, with the same zeroed memory, 256 bytes at least.
    """
    cdef uint64_t[::1] lines = memoryview(words).cast("B").cast("Q")
    if lines.shape[0] < 32 or not 0 <= me <= 1:
        raise ValueError("two threads, 0 and 1, and 256 bytes")
    return hand_over(&lines[16 * me], &lines[16 * (1 - me)], 0, me == 0, rounds, blocks)


cdef list hand_over(uint64_t *mine, uint64_t *theirs, uint64_t value, bint first, int rounds,
                    int blocks):
    """In each round store a higher value in the own line, and wait for it in the other's: before
    (``first``) or behind that."""
    cdef int64_t start
    cdef int _i
    means = []
    for _ in range(blocks):
        with nogil:
            start = monotonic_ns()
            for _i in range(rounds):
                value += 1
                if first:
                    store_release(mine, value)
                while <int64_t> (load_acquire(theirs) - value) < 0:
                    cpu_pause()
                if not first:
                    store_release(mine, value)
            start = monotonic_ns() - start
        means.append(start / <double> rounds)
    return means


def yields(int count, int blocks):
    """ns of one sched_yield, the others' turns included: the mean of ``count`` for each block."""
    cdef int64_t start
    cdef int _i
    means = []
    for _ in range(blocks):
        with nogil:
            start = monotonic_ns()
            for _i in range(count):
                sched_yield()
            start = monotonic_ns() - start
        means.append(start / <double> count)
    return means
