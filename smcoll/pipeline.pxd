from libc.stdint cimport uint64_t

from smcoll.atomics cimport load_relaxed, store_release
from smcoll.barrier cimport acquire_slot, arrived, arrived_with_length, publish_length
from smcoll.domains cimport Holders, Neighbours
from smcoll.kernels cimport Operation, copy_result
from smcoll.segment cimport Line, data_region, segment_line
from smcoll.team cimport AGAIN, DONE, BankCursor, Team, next_rank
from smcoll.trees cimport TreeView

cdef enum:
    MAX_PHASES = 5
    SECTION_STEPS = 64         # flag values that one section may use; the last one says "read"
    STEP_READ = 63


# A section: the piece of the user's vector that goes through one segment.
cdef struct Section:
    BankCursor slot
    uint64_t number
    uint64_t tick              # flag values of this section are tick + 1 .. tick + STEP_READ
    size_t offset              # bytes from the start of the vector
    size_t nbytes
    size_t elements
    int progress               # of the current phase; 0 at its start, kept when it would block
    bint published


# One collective call over sections, resumable: everything it needs to go on is in here.
cdef struct Call:
    Team *team
    const char *send
    char *recv
    size_t nbytes
    size_t element_size
    const Operation *operation
    int root
    const TreeView *fan_in
    const TreeView *fan_out
    int arity                  # LHS's n: a parent has n - 1 children in each round
    Neighbours up              # ours in the tree that reduces: ranks, or domains
    Neighbours down            # ours in the tree that spreads the result
    Holders holders            # who has the tiles of the result
    const void **sources       # scratch: `team.size` operands, and twice as much behind them
    void *details              # what only this collective knows
    bint streaming             # the result is too large for the caches
    size_t section_bytes
    uint64_t sections
    uint64_t tick
    int phases
    int (*phase[MAX_PHASES])(Call *, Section *) noexcept nogil
    bint single_segment        # all sections in one segment, a handshake between them
    int stride                 # turns between the starts of two sections
    Section in_flight[MAX_PHASES]
    uint64_t opened
    uint64_t turn
    int at_phase


cdef void plan_call(Call *call, int phases, size_t section_bytes, bint pipelined,
                    bint one_segment_form) noexcept nogil
cdef int advance(Call *call) noexcept nogil
cdef int complete(Call *call) noexcept nogil


# The five primitives that every algorithm is composed of: writable, post, heard, region, and the
# kernels that copy or reduce. (Release is the driver's: a section is released when its last phase
# is done.)

# May we write into our region of this section's segment? DONE or AGAIN.
cdef inline int writable(Call *call, Section *section) noexcept nogil:
    return acquire_slot(call.team, &section.slot)


# Our region holds what `step` stands for.
cdef inline void post(Call *call, Section *section, int step) noexcept nogil:
    post_length(call, section, step, call.team.nbytes)


# The same of a message whose length is this rank's own.
cdef inline void post_length(Call *call, Section *section, int step,
                             uint64_t nbytes) noexcept nogil:
    cdef Team *team = call.team
    cdef Line *line = segment_line(&team.layout, team.base, team.rank, section.slot.bank,
                                   section.slot.slot)
    if section.published or (call.single_segment and section.number > 0):
        # Readers of an earlier step, or of the section before in this very segment, may be
        # comparing the rest of the line just now; it says what they want already.
        store_release(&line.flag, section.tick + step)
    else:
        publish_length(team, line, section.tick + step, nbytes)
    section.published = True


# Has `rank` posted `step` (or a later one) of this section? DONE, AGAIN or FAILED.
cdef inline int heard(Call *call, Section *section, int rank, int step) noexcept nogil:
    cdef Team *team = call.team
    return arrived(team, segment_line(&team.layout, team.base, rank, section.slot.bank,
                                      section.slot.slot), section.tick + step, rank)


# The same, and how long its message is.
cdef inline int heard_length(Call *call, Section *section, int rank, int step,
                             size_t *nbytes) noexcept nogil:
    cdef Team *team = call.team
    cdef Line *line = segment_line(&team.layout, team.base, rank, section.slot.bank,
                                   section.slot.slot)
    cdef int status = arrived_with_length(team, line, section.tick + step, rank)
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


# A piece of the result, from shared memory to its place in the user's buffer.
cdef inline void deliver(Call *call, size_t offset, const char *source,
                         size_t nbytes) noexcept nogil:
    copy_result(call.recv + offset, source, nbytes, call.streaming)


# Where `rank` keeps its operand or result of this section.
cdef inline char *region(Call *call, Section *section, int rank) noexcept nogil:
    cdef Team *team = call.team
    return data_region(&team.layout, team.base, rank, section.slot.bank, section.slot.slot)
