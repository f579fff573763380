"""The shared mapping of one communicator on one node (Graham & Shipman 2008, section 3).

``header | rank 0: control pages, streams, data regions | rank 1: ... | ...``: all that a rank owns
is one range of whole pages, which it reserves and touches first itself, so that the pages lie on
its NUMA node: huge pages where there are any. A rank writes its own range and may read all others;
two ranks that both store change data regions (``coll.pipeline``), and the rooms for the chunks of
their streams (``coll.streams``).

Nothing here knows MPI: who creates, who attaches and that all agree is the caller's business
(``smcoll.comm.setup``).
"""

import errno
import fcntl
import os
import struct

import posix_ipc

from libc.errno cimport errno as c_errno
from libc.string cimport memcmp, memcpy, memset
from posix.mman cimport munmap
from posix.unistd cimport getpid

from smcoll.base.signature cimport COLLECTIVES
from smcoll.memory.huge_pages cimport HUGE_PAGE, RESERVED_AT_ONCE, make_huge, map_at_huge_page
from smcoll.segment cimport AWAITS_MPI, Layout, Published, Status

from smcoll.algorithms import EXCHANGE, ROOTED
from smcoll.base.internals import MAX_INLINE_SLOTS
from smcoll.config import MAX_SEGMENTS

cdef extern from "sys/mman.h" nogil:
    int madvise(void *start, size_t length, int advice) noexcept
    enum: MADV_REMOVE

cdef enum:
    MADV_POPULATE_READ = 22    # Linux 5.14; the C library's headers may be older

NAME_PREFIX = "/smcoll"
SHARED_MEMORY_DIRECTORY = "/dev/shm"
PAGE = os.sysconf("SC_PAGESIZE")
NONCE_BYTES = 16
MEMFD_NAME = "smcoll"
# What an observer reads of each rank, in bytes; ``status_fields`` and ``published_fields`` say what
# they hold.
STATUS_BYTES = sizeof(Status)
PUBLISHED_BYTES = sizeof(Published)
WAITS_FOR_MPI = AWAITS_MPI
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MAGIC = b"smcoll\x00\x07"
# magic, nonce, total bytes, ranks, banks, segments, segment_size, inline_slots
_HEADER = struct.Struct("=8s16sQQQQQQ")
# Behind them what the program calls the communicator, in UTF-8, for observers.
_TITLE = struct.Struct("=256s")
# Names that this process has open: closing a second descriptor of such a file would drop the
# POSIX locks by which the other ranks know that this one is alive.
_names_in_use = set()


cdef enum:
    # Bytes behind a full slot before the next one: a reader's prefetchers run on so far, and would
    # take lines from their writer that it is about to write.
    FETCHED_AHEAD = 2 * LINE_BYTES
    # A short message travels in its cell; eight let a sender of short messages run ahead.
    STREAM_CELLS_AT_MOST = 8
    STREAM_CELLS_AT_LEAST = 2
    STREAM_CELL = 256
    STREAM_CHUNK_AT_LEAST = 32768      # where there is that much room
    STREAM_CHUNK_AT_MOST = 131072
    CALLS_AHEAD_IN_STREAMS = 27 * 8
    # Measured: huge pages gain nothing for the streams of 2 ranks, and 5 to 10 % for those of 4.
    STREAMS_WORTH_A_HUGE_PAGE = HUGE_PAGE // 4


cdef size_t _round_up(size_t value, size_t unit) noexcept nogil:
    return (value + unit - 1) // unit * unit


cdef int compute_layout(Layout *layout, int ranks, int banks, int segments, size_t segment_size,
                        int inline_slots, size_t inline_size, size_t rooted_inline_size,
                        size_t stream_size) except -1:
    """Fill ``layout``; every offset and size in the mapping comes from here."""
    cdef size_t page = PAGE
    cdef size_t at = LINE_BYTES                       # behind the Status line
    cdef size_t others = max(ranks - 1, 1), pages
    if not (ranks >= 1 and 1 <= banks <= MAX_BANKS and segments >= 1 and inline_slots >= 1):
        raise ValueError(f"no layout for {ranks} ranks, {banks} banks of {segments} segments and "
                         f"{inline_slots} inline slots")
    if segment_size < page or segment_size % page:
        raise ValueError(f"segment_size {segment_size} is not a multiple of the page ({page})")
    layout.ranks = ranks
    layout.banks = banks
    layout.segments = segments
    layout.segment_size = segment_size
    layout.inline_slots = inline_slots
    layout.exchange_slot = _round_up(LINE_HEADER + inline_size, LINE_BYTES)
    layout.inline_size = layout.exchange_slot - LINE_HEADER
    layout.rooted_slot = _round_up(LINE_HEADER + rooted_inline_size, LINE_BYTES)
    layout.rooted_inline_size = layout.rooted_slot - LINE_HEADER
    layout.rooted_slot += FETCHED_AHEAD
    layout.stream_cell = STREAM_CELL
    layout.stream_inline = STREAM_CELL - LINE_HEADER
    pages = stream_size // page // others           # for each ring of this rank
    layout.stream_cells = STREAM_CELLS_AT_MOST     # always a power of two
    while layout.stream_cells > STREAM_CELLS_AT_LEAST and <size_t> layout.stream_cells > pages:
        layout.stream_cells //= 2
    layout.credits = 0
    layout.cells = <size_t> ranks * LINE_BYTES
    layout.chunks = _round_up(layout.cells + others * layout.stream_cells * STREAM_CELL, page)
    layout.stream_room = max(pages // layout.stream_cells, <size_t> 1) * page
    if layout.stream_room > STREAM_CHUNK_AT_LEAST and stream_size > layout.chunks:
        # That much with the cells, so that it fits a huge page.
        layout.stream_room = max(
            <size_t> STREAM_CHUNK_AT_LEAST,
            (stream_size - layout.chunks) // (others * layout.stream_cells) // page * page)
    layout.stream_chunk = min(layout.stream_room, <size_t> STREAM_CHUNK_AT_MOST)
    # A rank can be past another by at most all slots of both rings, a ring of each of its streams
    # and the calls around them; the ring is at least that long, so an entry that a waiter compares
    # was not overwritten yet. For the streams of up to 28 ranks, that is: with more, all gathered
    # from at once, a mismatch may be seen later.
    layout.ring_entries = 4
    while layout.ring_entries < (banks * (segments + inline_slots)
                                 + CALLS_AHEAD_IN_STREAMS + 4):
        layout.ring_entries *= 2
    layout.asleep = at
    at += LINE_BYTES
    layout.bank_fields = at
    at += 2 * banks * LINE_BYTES
    layout.read_costs = at
    at = _round_up(at + COLLECTIVES * STORE_CLASSES * sizeof(uint64_t), LINE_BYTES)
    layout.ring = at
    at = _round_up(at + layout.ring_entries * sizeof(Published), LINE_BYTES)
    layout.exchange = at
    at += 2 * layout.exchange_slot
    layout.rooted = at
    at += <size_t> banks * inline_slots * layout.rooted_slot
    layout.flags = at
    at += <size_t> banks * segments * LINE_BYTES
    layout.samples = at
    at += SAMPLES * sizeof(Sample)
    layout.control = _round_up(at, page)
    layout.streams = _round_up(
        layout.chunks + others * layout.stream_cells * layout.stream_room, page)
    layout.data = <size_t> banks * segments * segment_size
    layout.alignment = HUGE_PAGE if layout.data >= HUGE_PAGE else page
    if (layout.alignment == HUGE_PAGE and stream_size >= HUGE_PAGE
            and layout.streams >= STREAMS_WORTH_A_HUGE_PAGE):
        layout.streams = max(layout.streams, <size_t> HUGE_PAGE)
    layout.streams_at = _round_up(layout.control, layout.alignment)
    layout.data_at = _round_up(layout.streams_at + layout.streams, layout.alignment)
    layout.stride = _round_up(layout.data_at + layout.data, layout.alignment)
    layout.header = layout.alignment               # one page of it is used
    layout.total = layout.header + ranks * layout.stride
    layout.core_cache = 0
    return 0


cdef int configured_layout(Layout *layout, int ranks, config) except -1:
    """The layout of so many ranks' segment with these settings."""
    inner = config.internals
    return compute_layout(layout, ranks, inner.banks, config.segments,
                          config.settled(oversubscribed=False).segment_size,
                          inner.inline_slots, inner.inline_size, inner.rooted_inline_size,
                          inner.stream_size)


def memory_cost(config, int ranks):
    """Bytes of shared memory for a communicator of ``ranks`` ranks on one node.

    Constant per rank and linear in ranks and in data pages, up to 64 ranks (from there on the
    streams have at least two cells of a page to every rank). Where ``config`` leaves the size of
    segments open, it is that of ranks that do not outnumber their CPUs (``config.settled(True)``
    has that of others)::

        total = page + ranks * (control + streams + banks * segments * segment_size)

    ``control`` is 30 pages per rank by default and is all that is reserved until a call first needs
    the streams (Gather, Scatter, Alltoall and their kin; about ``stream_size``) or the data
    regions.
    The file is sparse: ``mapped``, its size, has gaps before what begins at a huge page. The last
    three keys are a rank's share of it, and where in that share its streams and data begin.
    """
    cdef Layout layout
    cdef size_t page = PAGE
    configured_layout(&layout, ranks, config)
    return {
        "header": page,
        "control": ranks * layout.control,
        "streams": ranks * layout.streams,
        "data": ranks * layout.data,
        "total": page + ranks * (layout.control + layout.streams + layout.data),
        "mapped": layout.total,
        "control_per_rank": layout.control,
        "streams_per_rank": layout.streams,
        "data_per_rank": layout.data,
        "mapped_per_rank": layout.stride,
        "streams_at": layout.streams_at,
        "data_at": layout.data_at,
    }


def places_to_observe(bytes header):
    """Where a mapping keeps what a report tells of each rank, from the mapping's header page.

    Returns ``{"total", "ranks", "stride", "first", "ring", "ring_entries", "title"}``: bytes of
    the mapping, number of ranks, bytes from one rank's Status line to the next, offset of rank 0's,
    from a Status line to the ring of published calls, and the communicator's name. OSError unless
    it is a mapping's header.
    """
    cdef Layout layout
    if len(header) < _HEADER.size + _TITLE.size or not header.startswith(_MAGIC):
        raise OSError(errno.EINVAL, "not a segment of this version of smcoll")
    _, _, total, ranks, banks, segments, segment_size, slots = _HEADER.unpack_from(header)
    if not (segments <= MAX_SEGMENTS and slots <= MAX_INLINE_SLOTS):
        raise OSError(errno.EINVAL, f"the header of a segment is damaged: {segments} segments and "
                      f"{slots} inline slots in a bank")
    try:
        # What lies before the inline slots does not depend on the sizes that the header lacks.
        compute_layout(&layout, ranks, banks, segments, segment_size, slots, 0, 0, 0)
    except (ValueError, OverflowError) as error:
        raise OSError(errno.EINVAL, f"the header of a segment is damaged: {error}")
    return {"total": total, "ranks": ranks, "first": layout.header,
            "stride": (total - layout.header) // ranks, "ring": layout.ring,
            "ring_entries": layout.ring_entries,
            "title": _TITLE.unpack_from(header, _HEADER.size)[0].rstrip(b"\0").decode(
                errors="replace")}


def status_fields(bytes line not None):
    """The fields of a Status line (segment.pxd) by name. ValueError for too few bytes."""
    cdef Status status
    if len(line) < STATUS_BYTES:
        raise ValueError(f"{len(line)} bytes are less than a Status line")
    memcpy(&status, <const char *> line, sizeof(Status))
    return status


def published_fields(bytes entry not None):
    """The fields of a Published entry (segment.pxd) by name. ValueError for too few bytes."""
    cdef Published published
    if len(entry) < PUBLISHED_BYTES:
        raise ValueError(f"{len(entry)} bytes are less than an entry of the ring")
    memcpy(&published, <const char *> entry, sizeof(Published))
    return published


def name_prefix():
    """Start of the names of this user's segments."""
    return f"{NAME_PREFIX}-{os.geteuid()}-"


def remove_stale():
    """Remove what jobs of this user that were killed while setting up have left.

    A segment has a name only until all its ranks have mapped it, and its creator holds a lock on
    it all that time. A file of ours that nobody has locked belongs to nobody.
    """
    removed = []
    prefix = name_prefix()[1:]
    try:
        names = os.listdir(SHARED_MEMORY_DIRECTORY)
    except OSError:
        return removed
    for name in names:
        if not name.startswith(prefix) or "/" + name in _names_in_use:
            continue
        path = os.path.join(SHARED_MEMORY_DIRECTORY, name)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                continue
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between creating and locking a living creator's file is unlocked too: an empty file
            # is left alone unless it is old.
            facts = os.fstat(descriptor)
            if facts.st_size == 0 and abs(_file_age(facts)) < 10:
                continue
            os.unlink(path)
            removed.append(name)
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return removed


def _file_age(facts):
    import time

    return time.time() - facts.st_mtime


def _open_named(name, int flags):
    """Descriptor of a file in /dev/shm. All that goes wrong is an OSError."""
    try:
        return posix_ipc.SharedMemory(name, flags, mode=0o600, size=0).fd
    except posix_ipc.ExistentialError as error:
        if flags:
            raise OSError(errno.EEXIST, f"{name}: {error}")
        raise OSError(errno.ENOENT, f"{name}: {error} (are the ranks in different containers?)")
    except posix_ipc.Error as error:
        raise OSError(errno.EACCES, f"{name}: {error}")


def _open_memfd(name):
    """Descriptor of another process's memfd, by its name in /proc. OSError if it is none of ours.

    Looked at before it is opened: in another PID namespace the number may stand for anything.
    """
    if not os.readlink(name).startswith(f"/memfd:{MEMFD_NAME}"):
        raise OSError(errno.EINVAL, f"{name} is no segment (do the ranks share /proc?)")
    descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS:
            raise OSError(errno.EPERM, f"{name} is not sealed against shrinking")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


cdef class Mapping:
    """One rank's view of the segment: created by one rank, attached to by the others.

    Two kinds of memory: ``shm``, a file in /dev/shm that has a name until all ranks have mapped
    it; ``memfd``, a file without a name that the others open through the creator's /proc entry:
    not bound by the size of /dev/shm, and sealed, so that nobody can shrink it under its users.

    Closing unmaps in this process only. After ``fork`` the child's copy does nothing when it is
    destroyed, except giving its own address space back.
    """

    def __cinit__(self, int rank, int ranks, config):
        self.base = NULL
        self.descriptor = -1
        self.owner_process = os.getpid()
        self.rank = rank
        configured_layout(&self.layout, ranks, config)

    def create(self, bytes nonce, str kind="shm", str title=""):
        """Make the file, of ``kind`` shm or memfd and of full (sparse) size. Returns its name.

        ``title``: the communicator's name, for observers; its first 256 bytes are kept. In
        /dev/shm: random name, exclusive, mode 0600. Raises OSError (also ENOSPC when not even the
        header's page can be reserved).
        """
        self.kind = kind
        if kind == "shm":
            self._create_named()
        else:
            self._create_memfd()
        os.posix_fallocate(self.descriptor, 0, PAGE)
        self.base = map_at_huge_page(self.descriptor, self.layout.total)
        header = self._header(nonce)
        memcpy(self.base, <const char *> header, _HEADER.size)
        os.pwrite(self.descriptor, _TITLE.pack(title.encode(errors="replace")), _HEADER.size)
        self._hold_lock()
        return self.name

    cdef _create_named(self):
        name = name_prefix() + os.urandom(8).hex()
        self.descriptor = _open_named(name, posix_ipc.O_CREX)
        self.name = name
        _names_in_use.add(name)
        self.linked = True
        # flock for the name's life (any process may test it), fcntl locks for the ranks' lives.
        fcntl.flock(self.descriptor, fcntl.LOCK_SH)
        os.set_inheritable(self.descriptor, False)
        os.ftruncate(self.descriptor, self.layout.total)

    cdef _create_memfd(self):
        self.descriptor = os.memfd_create(MEMFD_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.name = f"/proc/{os.getpid()}/fd/{self.descriptor}"
        os.fchmod(self.descriptor, 0o600)
        os.ftruncate(self.descriptor, self.layout.total)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, SEALS)

    def attach(self, str name, bytes nonce, str kind="shm"):
        """Map the file that another rank created; OSError unless it is that very file."""
        self.kind = kind
        if kind == "shm":
            self.descriptor = _open_named(name, 0)
            os.set_inheritable(self.descriptor, False)
            _names_in_use.add(name)
        else:
            self.descriptor = _open_memfd(name)
        self.name = name
        facts = os.fstat(self.descriptor)
        if facts.st_uid != os.geteuid():
            raise OSError(errno.EPERM, f"{name} belongs to another user")
        if <size_t> facts.st_size != self.layout.total:
            raise OSError(errno.EINVAL, f"{name} has {facts.st_size} bytes, "
                          f"not {self.layout.total}")
        self.base = map_at_huge_page(self.descriptor, self.layout.total)
        header = self._header(nonce)
        if memcmp(self.base, <const char *> header, _HEADER.size) != 0:
            raise OSError(errno.EINVAL, f"{name} is not the segment of this communicator")
        self._hold_lock()

    cdef bytes _header(self, bytes nonce):
        return _HEADER.pack(_MAGIC, nonce, self.layout.total, self.layout.ranks, self.layout.banks,
                            self.layout.segments, self.layout.segment_size,
                            self.layout.inline_slots)

    cdef _hold_lock(self):
        # A POSIX lock dies with its process, in every PID namespace, zombie or not, and is not
        # inherited by forked helpers: who holds byte r is rank r, alive.
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self.rank)

    def reserve_control(self):
        """Reserve and first touch this rank's control pages. OSError (ENOSPC) when it can't be."""
        self._reserve(0, self.layout.control)

    def reserve_data(self):
        """Reserve and first touch this rank's data regions. OSError (ENOSPC) when it can't be."""
        self._reserve(self.layout.data_at, self.layout.data)
        self.data_reserved = True

    def reserve_streams(self):
        """Reserve and first touch this rank's streams. OSError (ENOSPC) when it can't be."""
        self._reserve(self.layout.streams_at, self.layout.streams)
        self.streams_reserved = True

    def map_data_of_peers(self):
        """Map the other ranks' data regions, which all have reserved: no fault for each page.

        Only a matter of speed: a system that can't do it maps them as they are read.
        """
        self._map_of_peers(self.layout.data_at, self.layout.data)

    def map_streams_of_peers(self):
        """The same for the other ranks' streams."""
        self._map_of_peers(self.layout.streams_at, self.layout.streams)

    cdef _map_of_peers(self, size_t offset, size_t length):
        cdef int rank
        for rank in range(self.layout.ranks):
            if rank != self.rank:
                madvise(rank_range(&self.layout, self.base, rank) + offset, length,
                        MADV_POPULATE_READ)

    def give_data_back(self):
        """Return the pages of the data regions to the system (another rank could not have its)."""
        if self.data_reserved:
            self.data_reserved = False
            self._give_back(self.layout.data_at, self.layout.data)

    def give_streams_back(self):
        """Return the pages of the streams to the system (another rank could not have its)."""
        if self.streams_reserved:
            self.streams_reserved = False
            self._give_back(self.layout.streams_at, self.layout.streams)

    cdef _give_back(self, size_t offset, size_t length):
        if madvise(rank_range(&self.layout, self.base, self.rank) + offset, length,
                   MADV_REMOVE) != 0:
            raise OSError(c_errno, os.strerror(c_errno))

    def is_ours(self):
        """Whether this process made the mapping (a forked child did not) and still has it."""
        return self.base != NULL and getpid() == self.owner_process

    cdef _reserve(self, size_t offset, size_t length):
        cdef char *start = rank_range(&self.layout, self.base, self.rank) + offset
        cdef size_t file_offset = start - self.base
        cdef size_t whole = length - length % HUGE_PAGE
        cdef size_t done = 0
        while done < length:
            piece = min(length - done, <size_t> RESERVED_AT_ONCE)
            os.posix_fallocate(self.descriptor, file_offset + done, piece)
            done += piece
        if self.layout.alignment == HUGE_PAGE and whole > 0:
            # Only a matter of speed: an older system, or one that denies them, keeps small pages.
            make_huge(start, whole)
        memset(start, 0, length)

    def unlink(self):
        """Remove the name; the memory lives on until every rank has unmapped it."""
        if self.linked:
            self.linked = False
            try:
                posix_ipc.unlink_shared_memory(self.name)
            except posix_ipc.ExistentialError:
                pass
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def is_alive(self, int rank):
        """Whether some process holds the lock of ``rank``: a stopped one does, a zombie doesn't."""
        query = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, rank, 1, 0)
        answer = fcntl.fcntl(self.descriptor, fcntl.F_GETLK, query)
        return struct.unpack("hhqqi", answer)[0] != fcntl.F_UNLCK

    def close(self):
        """Unmap in this process and close the descriptor. Safe to call again, and after fork."""
        cdef char *base = self.base
        if base != NULL:
            self.base = NULL
            munmap(base, self.layout.total)
        if self.descriptor >= 0:
            if self.linked and getpid() == self.owner_process:
                self.unlink()
            os.close(self.descriptor)
            self.descriptor = -1
            _names_in_use.discard(self.name)

    def __dealloc__(self):
        # A forked child must not unlink or unlock what is its parent's: closing a descriptor in
        # the child drops no lock of the parent, and `linked` is heeded by the owner only.
        try:
            self.close()
        except OSError:
            pass

    @property
    def control_bytes(self):
        """Bytes of one rank's control pages."""
        return self.layout.control

    @property
    def bytes_per_rank(self):
        """Bytes of memory in one rank's range, all of it reserved."""
        return self.layout.control + self.layout.streams + self.layout.data

    @property
    def bytes_total(self):
        """Bytes of memory in the whole mapping, all of it reserved."""
        return PAGE + self.layout.ranks * self.bytes_per_rank

    @property
    def inline_sizes(self):
        """Largest payload of each kind of flag lines (``algorithms.EXCHANGE``, ``ROOTED``)."""
        return {EXCHANGE: self.layout.inline_size, ROOTED: self.layout.rooted_inline_size}

    @property
    def bytes_mapped(self):
        """Size of the whole mapping, a sparse file."""
        return self.layout.total

    def reserved_ranges(self):
        """(address, bytes) of each part of this rank's range that is really reserved."""
        cdef size_t start = <size_t> rank_range(&self.layout, self.base, self.rank)
        ranges = [(start, self.layout.control)]
        if self.streams_reserved:
            ranges.append((start + self.layout.streams_at, self.layout.streams))
        if self.data_reserved:
            ranges.append((start + self.layout.data_at, self.layout.data))
        return ranges

    @property
    def bytes_reserved(self):
        """Bytes of this rank's range that are really reserved."""
        return (self.layout.control + (self.layout.streams if self.streams_reserved else 0)
                + (self.layout.data if self.data_reserved else 0))
