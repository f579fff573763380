from libc.stdint cimport uint64_t

cdef enum:
    # A flag line is two cache lines, so that the adjacent-line prefetcher of one rank never drags
    # in what another rank writes.
    LINE_BYTES = 128
    SMALLEST_IN_TURN = 4096    # bytes (places_in_turn)
    LINE_HEADER = 32           # bytes of a Line before its payload
    MAX_BANKS = 8
    SAMPLES = 8                # calls of a trial that are measured
    STORE_CLASSES = 13         # sizes by which costs of reading are published: 4 KiB to 16 MiB

# Status.awaited of a call that MPI carries out.
cdef enum:
    AWAITS_MPI = 0xffffffff


# A flag line in shared memory. Written by its owner only; read by every rank. The owner stores
# `flag` last, with release, after all other fields; a reader loads it first, with acquire.
cdef struct Line:
    uint64_t flag              # a number that only grows; of which counter: docs/design.md
    uint64_t mark              # the owner's Team.mark: number of its call, hash of those before,
    uint64_t signature         # what it called (see signature.pxd: pack_signature)
    uint64_t nbytes            # and with how many bytes per rank: compared by every reader
    char payload[96]           # inline data; may run on into the lines behind

# In a cell of a stream, and in an Allgather, `nbytes` is the length of the owner's message: it may
# differ from rank to rank and is not compared.


# An entry of the ring of published signatures. Owner-written; `call` last, with release.
cdef struct Published:
    uint64_t call
    uint64_t signature
    uint64_t nbytes
    uint64_t history           # what it called before (Team.history)
    uint64_t number            # of the call as users count them: without stages of ours


# Where in its heap a rank wants a message; `cell` last, with release.
cdef struct Offer:
    uint64_t place             # an offset
    uint64_t room              # bytes from there on
    uint64_t cell              # number of the message's first cell


# What one call of a trial took on one rank (learning.pyx); `call` last, with release.
cdef struct Sample:
    uint64_t arrived           # ns of the clock that a node's cores have in common
    uint64_t worked            # ns of CPU time in the call, where ranks share CPUs; else 0
    uint64_t call              # 24 bits of its number as users count, 40 of its time in ns; 0: none


# The first line of a rank's control pages.
cdef struct Status:
    uint64_t poison            # 0, or why this rank gave the communicator up (team.pxd)
    uint64_t poison_call       # in which call,
    uint64_t poison_since      # from which of the user's calls on others fail for it, too,
    uint64_t left              # 1: freed in good order
    uint64_t current_call      # last call published in the ring
    int busy                   # 1 while this rank is in a call (atomics.h: try_lock, unlock)
    int poison_rank            # because of whom it gave up (all stored before `poison`)
    uint64_t waiting_since     # of the wait below, monotonic ns (stored before it)
    uint64_t awaited           # in a long wait: 1 + the rank waited for, AWAITS_MPI; else 0
    int cpu                    # 1 + the CPU that this rank was last seen on; 0: not yet


# Byte offsets and sizes of everything in the mapping; the only place with layout arithmetic.
cdef struct Layout:
    int ranks, banks, segments
    int inline_slots           # of rooted calls and scans, in a bank of their own kind
    size_t segment_size        # bytes of one data region
    size_t exchange_slot       # bytes of one slot of the synchronising exchange (there are two)
    size_t rooted_slot         # bytes of one such slot (banks x inline_slots)
    size_t inline_size, rooted_inline_size   # largest payloads of the two
    int ring_entries
    # offsets inside a rank's range
    size_t asleep              # a line of its own: the others look at it in every call
    size_t bank_fields         # 2 x banks lines: the data banks', then the inline banks' barriers
    size_t read_costs          # a word for each (collective, size): stores.pyx
    size_t ring
    size_t exchange
    size_t rooted
    size_t flags               # banks x segments lines
    size_t samples             # of calls on trial: SAMPLES
    size_t control             # bytes of the control pages; streams, then data regions follow
    # Streams: for every other rank a ring of cells that only that rank reads, as many rooms for
    # chunks, which both write by turns, and a line with how many of its cells this rank has read.
    int stream_cells           # cells in a ring
    size_t stream_cell         # bytes of a cell: a Line whose payload holds a short message
    size_t stream_inline       # largest message that travels in a cell
    size_t stream_room         # bytes of a room for one chunk
    size_t stream_chunk        # bytes of the longest chunk
    size_t credits             # offsets inside the streams' range
    size_t cells
    size_t chunks
    size_t streams             # bytes of the streams' range
    size_t data                # bytes of the data regions
    # Where the data regions fill a huge page, each part of a range begins at one, and gaps of the
    # sparse file lie before them. So a rank's memory is less than its stride.
    size_t alignment           # bytes: of a huge page, or of a page
    size_t streams_at          # offset inside a rank's range; its control pages are at 0
    size_t data_at
    size_t stride              # bytes from one rank's range to the next
    size_t header              # bytes before rank 0's range
    size_t total
    # Not of the mapping, but agreed as that is: bytes of a core's own cache; 0: ranks share cores.
    size_t core_cache


cdef int compute_layout(Layout *layout, int ranks, int banks, int segments, size_t segment_size,
                        int inline_slots, size_t inline_size, size_t rooted_inline_size,
                        size_t stream_size) except -1


cdef inline char *rank_range(const Layout *layout, char *base, int rank) noexcept nogil:
    return base + layout.header + <size_t> rank * layout.stride


cdef inline Status *status_of(const Layout *layout, char *base, int rank) noexcept nogil:
    return <Status *> rank_range(layout, base, rank)


# Whether the rank sleeps in a wait (team.pxd), for who could wake it.
cdef inline int *asleep_of(const Layout *layout, char *base, int rank) noexcept nogil:
    return <int *> (rank_range(layout, base, rank) + layout.asleep)


# What the rank, if it is rank 0, tells all others (news.pxd): behind the word that says how
# it sleeps, in the same line.
cdef inline uint64_t *told_by(const Layout *layout, char *base, int rank) noexcept nogil:
    return <uint64_t *> (rank_range(layout, base, rank) + layout.asleep) + 1


cdef inline Sample *samples_of(const Layout *layout, char *base, int rank) noexcept nogil:
    return <Sample *> (rank_range(layout, base, rank) + layout.samples)


# kind 0: barrier of a data bank, 1: of a bank of rooted inline slots.
cdef inline uint64_t *bank_field(const Layout *layout, char *base, int rank, int kind,
                                 int bank) noexcept nogil:
    return <uint64_t *> (rank_range(layout, base, rank) + layout.bank_fields
                         + <size_t> (kind * layout.banks + bank) * LINE_BYTES)


# What reading cost the rank, by kind of stores: collectives x STORE_CLASSES words.
cdef inline uint64_t *read_costs(const Layout *layout, char *base, int rank) noexcept nogil:
    return <uint64_t *> (rank_range(layout, base, rank) + layout.read_costs)


cdef inline Published *published(const Layout *layout, char *base, int rank,
                                 uint64_t call) noexcept nogil:
    return (<Published *> (rank_range(layout, base, rank) + layout.ring)
            + (call & <uint64_t> (layout.ring_entries - 1)))


cdef inline Line *exchange_line(const Layout *layout, char *base, int rank,
                                int parity) noexcept nogil:
    return <Line *> (rank_range(layout, base, rank) + layout.exchange
                     + <size_t> parity * layout.exchange_slot)


cdef inline Line *rooted_line(const Layout *layout, char *base, int rank, int bank,
                              int slot) noexcept nogil:
    return <Line *> (rank_range(layout, base, rank) + layout.rooted
                     + <size_t> (bank * layout.inline_slots + slot) * layout.rooted_slot)


cdef inline Line *segment_line(const Layout *layout, char *base, int rank, int bank,
                               int segment) noexcept nogil:
    return <Line *> (rank_range(layout, base, rank) + layout.flags
                     + <size_t> (bank * layout.segments + segment) * LINE_BYTES)


cdef inline size_t whole_lines(size_t nbytes) noexcept nogil:
    return (nbytes + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES


# In how many places of its room of a ring a section or chunk of `extent` bytes begins by turns. A
# short one begins elsewhere in each pass through the ring, so that between two uses of a place
# twice as much goes through a core as its own cache holds, counting the user's data. Then its lines
# have left the reader's cache before the writer needs them again. Long vectors push them out by
# themselves, and few lines come faster from the other core than from farther away. `ring`: how many
# rooms it has.
cdef inline uint64_t places_in_turn(const Layout *layout, size_t extent, size_t room,
                                    uint64_t ring, size_t nbytes) noexcept nogil:
    cdef size_t cache = layout.core_cache
    cdef uint64_t places
    if nbytes < SMALLEST_IN_TURN or cache == 0:
        return 1
    places = (2 * cache - min(nbytes, cache) + ring * extent - 1) // (ring * extent)
    return min(places, <uint64_t> (room // extent))


cdef inline size_t place_in_turn(uint64_t pass_, uint64_t places, size_t extent) noexcept nogil:
    return pass_ % places * extent


cdef inline char *data_region(const Layout *layout, char *base, int rank, int bank,
                              int segment) noexcept nogil:
    return (rank_range(layout, base, rank) + layout.data_at
            + <size_t> (bank * layout.segments + segment) * layout.segment_size)


# How many cells from `source` the owner of the word, `rank`, has read.
cdef inline uint64_t *credit_word(const Layout *layout, char *base, int rank,
                                  int source) noexcept nogil:
    return <uint64_t *> (rank_range(layout, base, rank) + layout.streams_at + layout.credits
                         + <size_t> source * LINE_BYTES)


# The last cell from `source` of which the owner, `rank`, wants the message staged: it could not
# read it where it lies. Beside the credit, and stored before it.
cdef inline uint64_t *refusal_word(const Layout *layout, char *base, int rank,
                                   int source) noexcept nogil:
    return credit_word(layout, base, rank, source) + 1


# Where the owner, `rank`, wants the next message from `source`: stored before its number is. Behind
# the refusal.
cdef inline Offer *offer_to(const Layout *layout, char *base, int rank, int source) noexcept nogil:
    return <Offer *> (credit_word(layout, base, rank, source) + 2)


# The last cell to `destination` whose message the owner, `rank`, has written there. Behind the
# offer.
cdef inline uint64_t *written_word(const Layout *layout, char *base, int rank,
                                   int destination) noexcept nogil:
    return <uint64_t *> (offer_to(layout, base, rank, destination) + 1)


# Place of the ring for `destination` among those of `rank`, which has none for itself.
cdef inline size_t ring_to(int rank, int destination) noexcept nogil:
    return destination if destination < rank else destination - 1


# Cell number `count` (from 1) of the stream from `rank` to `destination`.
cdef inline Line *stream_line(const Layout *layout, char *base, int rank, int destination,
                              uint64_t count) noexcept nogil:
    return <Line *> (rank_range(layout, base, rank) + layout.streams_at + layout.cells
                     + (ring_to(rank, destination) * layout.stream_cells
                        + count % <uint64_t> layout.stream_cells) * layout.stream_cell)


# Chunk `position`, counted for both streams of a pair of ranks, of the one from `rank`. In every
# other pass, and where they are turned, the two streams have each other's rooms. `extent`: bytes of
# the message's chunks, whole lines.
cdef inline char *stream_chunk(const Layout *layout, char *base, int rank, int destination,
                               uint64_t position, bint is_turned, uint64_t places,
                               size_t extent) noexcept nogil:
    cdef uint64_t cells = layout.stream_cells
    cdef uint64_t pass_ = position // cells
    if (pass_ + is_turned) % 2 == 1:
        rank, destination = destination, rank
    return (rank_range(layout, base, rank) + layout.streams_at + layout.chunks
            + (ring_to(rank, destination) * cells + position % cells) * layout.stream_room
            + place_in_turn(pass_ // 2, places, extent))


# Whether its place is used for the first time by this rank.
cdef inline bint is_fresh_chunk(const Layout *layout, uint64_t position,
                                uint64_t places) noexcept nogil:
    return position // layout.stream_cells < 2 * places


cdef class Mapping:
    cdef Layout layout
    cdef char *base
    cdef readonly str name
    cdef readonly str kind         # of memory: shm or memfd
    cdef int descriptor
    cdef int owner_process
    cdef readonly int rank
    cdef readonly bint data_reserved
    cdef readonly bint streams_reserved
    cdef bint linked

    cdef _create_named(self)
    cdef _create_memfd(self)
    cdef bytes _header(self, bytes nonce)
    cdef _hold_lock(self)
    cdef _reserve(self, size_t offset, size_t length)
    cdef _map_of_peers(self, size_t offset, size_t length)
    cdef _give_back(self, size_t offset, size_t length)
