from libc.stdint cimport int64_t, uint64_t

from smcoll.barrier cimport acquire_slot, arrived, arrived_with_length, post_line_length
from smcoll.base.atomics cimport load_relaxed, monotonic_ns, prefetch_line, store_release
from smcoll.base.kernels cimport (
    Operation, copy_result, copy_stored, reduce_and_copy, reduce_operands, reduce_stored,
)
from smcoll.coll.stores cimport (
    UNKNOWN_STORES, end_reading, next_stores, start_reading, tell_stores, told_stores,
)
from smcoll.segment cimport Line, data_region, segment_line, whole_lines
from smcoll.sync.domains cimport Holders, Neighbours
from smcoll.sync.team cimport DONE, BankCursor, StoreClass, Team, next_rank
from smcoll.sync.trees cimport TreeView

cdef enum:
    MAX_PHASES = 5
    SECTION_STEPS = 64         # flag values that one section may use; the last one says "read"
    STEP_READ = 63
    STEP_IN = 1                # our vector, or what others need of it, is in our region
    STEP_RESULT = 2            # the result, or our slice of it, is in our region
    CACHE_LINE = 64            # bytes: slices are cut at cache lines

# How an algorithm uses segments: flags of plan_call.
cdef enum:
    SOME_STORE = 0
    ALL_STORE = 1              # in each section every rank stores into its region: for speed only
    ONE_SEGMENT = 2            # all sections in one segment, where it is not pipelined (GS 3.1)
    ROOT_STORES = 4            # of two ranks only the root does,
    OTHER_STORES = 8           # or only the other one: for speed only


# A section: the piece of the user's vector that goes through one segment.
cdef struct Section:
    BankCursor slot
    uint64_t number
    uint64_t tick              # flag values of this section are tick + 1 .. tick + STEP_READ
    size_t offset              # bytes from the start of the vector
    size_t nbytes
    size_t elements
    size_t place               # where it begins in every rank's region
    bint is_swapped            # who stores does so in the other one's range (of two ranks)
    bint is_fresh              # its class of calls has not used all places yet
    int stores                 # kind with which this rank writes here, or UNKNOWN_STORES
    bint sampled               # whether what that costs is measured:
    int64_t spent              # ns so far,
    size_t stored              # for so many bytes
    int progress               # of the current phase; 0 at its start, kept when it would block
    bint is_posted             # this rank's line says that it holds a step of it


# Which flag lines carry small messages.
cdef enum Lines:
    NO_LINES
    EXCHANGE_LINES
    ROOTED_LINES


cdef struct Call
ctypedef int (*run_function)(Call *) noexcept nogil


# What an algorithm is: its line of algorithms.TABLE, which names file and functions. Those of
# `tree` are both: they look at call.in_lines.
cdef struct Functions:
    run_function run           # through the data regions; NULL: it has no such form
    run_function run_inline    # in the flag lines
    Lines lines


# Whether the data of a call of so many bytes travel in the flag lines. `nbytes`: in an Allgather
# the longest block, in a Reduce_scatter the whole vector. All ranks pass the same number.
cdef inline bint fits_lines(const Team *team, const Functions *functions,
                            size_t nbytes) noexcept nogil:
    if functions.lines == EXCHANGE_LINES:
        return nbytes <= team.layout.inline_size
    return functions.lines == ROOTED_LINES and nbytes <= team.layout.rooted_inline_size


# How one call is to be done.
cdef struct Plan:
    int algorithm              # its number,
    const Functions *functions     # and what it runs
    const TreeView *fan_in
    const TreeView *fan_out
    int arity                  # LHS's n: a parent has n - 1 children in each round
    size_t section_bytes       # bytes of the vector that go through one segment
    int segments               # that it uses of a bank
    bint pipelined


# One collective call: all that an algorithm is given. The fields behind `chosen` are for
# algorithms that go section by section. Such an algorithm may stop anywhere; they hold what it
# needs to go on.
cdef struct Call:
    # Filled by who makes the call ...
    const char *send
    char *recv
    size_t nbytes
    size_t elements
    size_t element_size
    const Operation *operation     # NULL where nothing is reduced
    int root
    const void **sources       # scratch: `team.size` operands, and twice as much behind them
    bint holds_gil             # the calling thread has it, and a wait may give it up
    bint staged_by_all         # by all ranks, for this one says so: arrays in shared heaps, too
    bint peer_is_far           # where rank 0 measures that: the other of two
    # ... and by the engine that carries it out.
    Team *team
    const Plan *plan
    void *details              # what only this collective has, or only this algorithm knows
    bint exclusive             # an Exscan
    bint in_lines              # the data fit the flag lines and travel there
    Neighbours up              # ours in the tree that reduces: ranks, or domains
    int at_once                # children whose data a parent combines in one round
    Neighbours down            # ours in the tree that spreads the result
    Holders holders            # who has the tiles of the result
    bint streaming             # the result is too large for the caches
    # What is known of the kinds of stores for what others read. It decides how fast they are, never
    # what they store. NULL: there is no choice.
    StoreClass *chosen
    uint64_t sections_before   # of earlier calls with that choice,
    uint64_t unlike_before     # of which so many followed another algorithm
    size_t section_bytes       # of all sections but the last
    size_t extent              # bytes of a region that a section may use
    uint64_t sections
    uint64_t tick
    int phases
    int (*phase[MAX_PHASES])(Call *, Section *) noexcept nogil
    bint single_segment        # all sections in one segment, a handshake between them (pairwise)
    bint swaps                 # the two ranks change regions when they come back to a place
    bint shares                # both ranks store in rank 0's regions
    int stride                 # turns between the starts of two sections
    Section in_flight[MAX_PHASES]
    uint64_t opened
    uint64_t turn
    int at_phase


cdef void plan_call(Call *call, int phases, size_t section_bytes, int use) noexcept nogil
cdef int advance(Call *call) noexcept nogil
# Runs the phases of all sections, as far as flags allow, and waits in between.
cdef int complete(Call *call) noexcept nogil


# The primitives that every algorithm is composed of: writable, region, put, reduce_into and
# reduce_for_all (what others will read), post, heard and heard_all, deliver and reduce_from (what
# others have stored); offer is writable, put and post. Release is the driver's: a section is
# released when its last phase is done.

# May we write into our region of this section's segment? DONE or AGAIN.
cdef inline int writable(Call *call, Section *section) noexcept nogil:
    return acquire_slot(call.team, &section.slot)


# `rank`'s flag line of this section.
cdef inline Line *line_of(const Call *call, const Section *section, int rank) noexcept nogil:
    cdef const Team *team = call.team
    return segment_line(&team.layout, team.base, rank, section.slot.bank, section.slot.slot)


# Our region holds what `step` stands for.
cdef inline void post(Call *call, Section *section, int step) noexcept nogil:
    post_length(call, section, step, call.team.nbytes)


# The same of a message whose length is this rank's own.
cdef inline void post_length(Call *call, Section *section, int step,
                             uint64_t nbytes) noexcept nogil:
    cdef Team *team = call.team
    cdef Line *line = line_of(call, section, team.rank)
    # A hint in the payload, which nobody compares: of other ranks' use for their statistics.
    tell_stores(line, section.stores)
    if section.is_posted or (call.single_segment and section.number > 0):
        # Readers of an earlier step, or of the section before in this very segment, may be
        # comparing the rest of the line just now; it says what they want already.
        store_release(&line.flag, section.tick + step)
    else:
        post_line_length(team, line, section.tick + step, nbytes)
    section.is_posted = True


# Fetch the flag of `rank` for the next section while this one is read. For a rank that reads what
# another one writes ahead of it: where both write and read, it gains nothing (notebook-stores.md).
cdef inline void expect_next(Call *call, Section *section, int rank) noexcept nogil:
    cdef Team *team = call.team
    cdef const BankCursor *slot = &team.segments
    cdef uint64_t number = section.number + 1
    if number >= call.sections or call.single_segment:
        return
    if number < call.opened:
        slot = &call.in_flight[number % MAX_PHASES].slot
    prefetch_line(&segment_line(&team.layout, team.base, rank, slot.bank, slot.slot).flag)


# Has `rank` posted `step` (or a later one) of this section? DONE, AGAIN or FAILED.
cdef inline int heard(Call *call, Section *section, int rank, int step) noexcept nogil:
    return arrived(call.team, line_of(call, section, rank), section.tick + step, rank)


# The same, and how long its message is.
cdef inline int heard_length(Call *call, Section *section, int rank, int step,
                             size_t *nbytes) noexcept nogil:
    cdef Line *line = line_of(call, section, rank)
    cdef int status = arrived_with_length(call.team, line, section.tick + step, rank)
    if status == DONE:
        nbytes[0] = load_relaxed(&line.nbytes)
    return status


# Has every other rank? Goes on where it stopped, by section.progress.
cdef inline int heard_all(Call *call, Section *section, int step) noexcept nogil:
    cdef int status
    while section.progress < call.team.size - 1:
        status = heard(call, section, next_rank(call.team, section.progress + 1), step)
        if status != DONE:
            return status
        section.progress += 1
    return DONE


# Where `rank` keeps its operand or result of this section. Only `rank` stores there until all have
# released the segment.
cdef inline char *region(Call *call, Section *section, int rank) noexcept nogil:
    cdef Team *team = call.team
    cdef int owner = 1 - rank if section.is_swapped else rank
    return (data_region(&team.layout, team.base, owner, section.slot.bank, section.slot.slot)
            + section.place)


# How much of each region a section of this call may use; plan_call says: as much as it is long.
cdef inline void occupy(Call *call, size_t nbytes) noexcept nogil:
    call.extent = whole_lines(nbytes)


# For algorithms that keep two vectors there, in turn operand and result.
cdef inline void occupy_two_halves(Call *call) noexcept nogil:
    call.extent = 2 * whole_lines(call.section_bytes)


cdef inline char *half_of_region(Call *call, Section *section, int rank, int half) noexcept nogil:
    return region(call, section, rank) + <size_t> (half & 1) * (call.extent // 2)


# Where part `part` of `parts` of a vector begins, in bytes; `part` = parts: its end. An element
# whose size does not divide a line is not cut.
cdef inline size_t cut(size_t nbytes, size_t element_size, int parts, int part) noexcept nogil:
    cdef size_t unit = CACHE_LINE if CACHE_LINE % element_size == 0 else element_size
    cdef size_t units = (nbytes + unit - 1) // unit
    cdef size_t at = units * <size_t> part // <size_t> parts * unit
    return at if at < nbytes else nbytes


# Where `rank`'s slice of a section begins, in bytes; `rank` = ranks: the end of the last one.
cdef inline size_t tile(Call *call, Section *section, int rank) noexcept nogil:
    return cut(section.nbytes, call.element_size, call.team.size, rank)


# Segments of a round, by which the choice of stores counts: of all calls of a class alike, though
# some use fewer (share_regions).
cdef inline uint64_t round_of(const Call *call) noexcept nogil:
    return <uint64_t> (call.team.layout.banks * call.plan.segments)


# The kind of stores for our part of this section, the same for all that we put there.
cdef inline int stores_for(Call *call, Section *section) noexcept nogil:
    cdef Team *team = call.team
    if section.stores == UNKNOWN_STORES:
        section.stores = next_stores(
            team, call.chosen, call.sections_before + section.number,
            round_of(call), section.is_fresh, &section.sampled)
    return section.stores


# Before and after each copy or reduction into our region (end_storing). The time between is a
# sample for the kind of stores in use.
cdef inline int64_t start_storing(Section *section) noexcept nogil:
    return monotonic_ns() if section.sampled else 0


cdef inline void end_storing(Section *section, int64_t began, size_t nbytes) noexcept nogil:
    if section.sampled:
        section.spent += monotonic_ns() - began
        section.stored += nbytes


# Copy into our region, for others to read. The kind of stores only decides how fast that is: with
# each of them the bytes are complete, and ordered before a `post` that follows (rule 14).
cdef inline void put(Call *call, Section *section, char *to, const void *source,
                     size_t nbytes) noexcept nogil:
    cdef int stores = stores_for(call, section)
    cdef int64_t began = start_storing(section)
    copy_stored(stores, to, source, nbytes)
    end_storing(section, began, nbytes)


# This section of our vector into our region: what algorithms begin with. DONE or AGAIN.
cdef inline int offer(Call *call, Section *section, int step) noexcept nogil:
    cdef int status = writable(call, section)
    if status != DONE:
        return status
    put(call, section, region(call, section, call.team.rank), call.send + section.offset,
        section.nbytes)
    post(call, section, step)
    return DONE


# A first phase: the own vector for all to read.
cdef inline int copy_in(Call *call, Section *section) noexcept nogil:
    return offer(call, section, STEP_IN)


# Reduce `call.sources` into our region, for others to read. The sources are used up.
cdef inline void reduce_into(Call *call, Section *section, char *to, int count,
                             size_t nbytes) noexcept nogil:
    reduce_operands_into(call, section, to, call.sources, count, nbytes)


cdef inline void reduce_operands_into(Call *call, Section *section, char *to,
                                      const void **operands, int count,
                                      size_t nbytes) noexcept nogil:
    cdef int stores = stores_for(call, section)
    cdef int64_t began = start_storing(section)
    reduce_stored(call.operation, to, stores, operands, count, nbytes, call.element_size)
    end_storing(section, began, nbytes)


# Elements `begin` to `end` of two vectors into those of a third, for others to read.
cdef inline void combine(Call *call, Section *section, char *to, const char *left,
                         const char *right, size_t begin, size_t end) noexcept nogil:
    cdef const void *operands[2]
    cdef size_t at = begin * call.element_size
    operands[0] = left + at
    operands[1] = right + at
    reduce_operands_into(call, section, to + at, operands, 2, (end - begin) * call.element_size)


# Reduce `call.sources` for the user, and copy the result into our region, strip by strip. As with
# `put`, the kind of stores only decides how fast that is.
cdef inline void reduce_for_all(Call *call, Section *section, char *out, char *to, int count,
                                size_t nbytes) noexcept nogil:
    cdef int stores = stores_for(call, section)
    cdef int64_t began = start_storing(section)
    reduce_and_copy(call.operation, out, to, stores, call.sources, count, nbytes,
                    call.element_size)
    end_storing(section, began, nbytes)


# Whether our own code does all the work. A function of the user's or of MPI's that combines
# operands takes more than any stores or algorithm can save: then these are not chosen by time.
cdef inline bint has_own_kernels(const Call *call) noexcept nogil:
    return call.operation == NULL or call.operation.kernel != NULL


# With which stores `rank` has written its part of this section: what it has posted was heard.
cdef inline int stores_of(Call *call, Section *section, int rank) noexcept nogil:
    cdef Team *team = call.team
    if rank == team.rank:
        return UNKNOWN_STORES
    if call.chosen == NULL:
        return team.stores.fixed if team.stores.fixed >= 0 else UNKNOWN_STORES
    return told_stores(segment_line(&team.layout, team.base, rank, section.slot.bank,
                                    section.slot.slot))


# The same of all other ranks; UNKNOWN_STORES where they differ.
cdef inline int stores_of_others(Call *call, Section *section) noexcept nogil:
    cdef Team *team = call.team
    cdef int i, kind
    if call.chosen == NULL:
        return UNKNOWN_STORES
    kind = stores_of(call, section, next_rank(team, 1))
    for i in range(2, team.size):
        if stores_of(call, section, next_rank(team, i)) != kind:
            return UNKNOWN_STORES
    return kind


# A piece of the result, from the region of `rank` to its place in the user's buffer.
cdef inline void deliver(Call *call, Section *section, int rank, size_t offset,
                         const char *source, size_t nbytes) noexcept nogil:
    cdef int kind = stores_of(call, section, rank)
    cdef int64_t began
    if rank == call.team.rank:
        # Back from where its own stores have put it.
        began = start_storing(section)
        copy_result(call.recv + offset, source, nbytes, call.streaming)
        end_storing(section, began, 0)
        return
    began = start_reading(call.chosen, kind, nbytes, section.is_fresh)
    copy_result(call.recv + offset, source, nbytes, call.streaming, kind)
    end_reading(call.chosen, kind, began, nbytes)


# Reduce `call.sources` to the user, where what others have stored was written with this `kind`.
cdef inline void reduce_from(Call *call, Section *section, int kind, char *out, int count,
                             size_t nbytes) noexcept nogil:
    cdef int64_t began = start_reading(call.chosen, kind, nbytes, section.is_fresh)
    reduce_operands(call.operation, out, call.sources, count, nbytes // call.element_size)
    end_reading(call.chosen, kind, began, nbytes)
