from libc.stdint cimport int64_t, uint32_t, uint64_t

from smcoll.base.kernels cimport STORES_KINDS
from smcoll.base.signature cimport COLLECTIVES
from smcoll.memory.cross_memory cimport OtherProcess
from smcoll.memory.heap cimport HeapView
from smcoll.segment cimport MAX_BANKS, Layout, Status
from smcoll.sync.domains cimport DomainView

cdef extern from "Python.h":
    # Not from cpython.pystate: every module that sees a Team would translate six more files.
    ctypedef struct PyThreadState:
        pass

# What a wait or a step of an algorithm returns.
cdef enum:
    DONE = 0
    AGAIN = 1                  # would block; Team.awaited_* say on what
    FAILED_EXCEPTION = -1      # a Python exception is kept in the team's attendant
    FAILED_MISMATCH = -2       # Team.awaited_rank is in another call
    FAILED_POISONED = -3       # a rank gave up; Team.awaited_rank says which
    FAILED_TIMEOUT = -4        # Team.awaited_rank did not come
    FAILED_PEER_DEAD = -5      # Team.awaited_rank died
    FAILED_DAMAGED = -6        # what Team.awaited_rank published cannot be true

# Why a rank gave up (Status.poison).
cdef enum:
    POISON_EXCEPTION = 1
    POISON_MISMATCH = 2
    POISON_PEER_DEAD = 3
    POISON_TIMEOUT = 4
    POISON_PEER_ENDED = 5      # in good order, or it freed the communicator

# Reusable slots in banks. `pass_` counts full rounds over all banks, so that bank b's barrier of
# round n is complete when every rank's field is >= n + 1.
cdef struct BankCursor:
    int kind                   # which barrier fields: 0 data banks, 1 rooted inline banks
    int bank, slot
    int in_use                 # slots of a bank before the next bank is taken; see use_segments
    uint64_t pass_

# What a rank's word says of it (segment.pxd: asleep_of).
cdef enum:
    AWAKE = 0
    ASLEEP = 1                 # on that very word, until any other rank begins a call

# How far the next rank's core is, as calls of one kind and size see it (coll/distance.pyx).
cdef struct Distance:
    uint32_t moves             # how often that has changed
    uint32_t looks             # the first ones only
    int64_t line_ns            # what a line takes from there
    int unlike                 # in how many looks in a row it took longer; negative: less time,
    int64_t least              # and the least of these


# What one rank knows of one (collective, size class). Costs are in ns for 64 KiB; 0: not known.
cdef struct StoreClass:
    uint64_t *shared           # where this rank publishes what reading cost it
    uint32_t forgotten         # reads of other kinds after which a kind comes up anew
    # As a writer.
    int stores                 # the kind in use,
    int usual                  # and the one to begin with
    int challenger             # the kind that was cheaper in the last trial; -1: none
    int wins                   # in so many trials in a row, counted as WINS_NEEDED says
    uint64_t sections          # that the class has had, of calls in which others stored, too
    uint64_t unlike            # so many of them followed another algorithm than the next one
    uint64_t trial             # the round that begins the next trial, or began this one,
    int on_trial               # which kind it tries; ALL_KINDS: a survey,
    uint64_t turn              # which segments take part,
    bint is_new                # none of them has yet,
    bint is_due                # a survey is to begin,
    bint is_unclaimed          # since calls follow another algorithm: the kind in use has no claim
    uint32_t overlapped        # pieces of a call, of which one is written while another is read
    bint rests                 # this call tries an algorithm: no sample of it counts here
    bint was_late              # this rank stored nothing in the rounds of its survey
    Distance distance
    uint32_t moves             # its moves when that survey began, or when another was planned
    bint is_doubtful           # it was for such a change: there is to be a second one
    int alarms                 # surveys for a change that left the kind in use
    uint64_t next_look         # the round that looks for a change
    int failures               # trials in a row that found nothing
    double spent[STORES_KINDS]     # what stores cost in this trial, in all,
    double highest[STORES_KINDS]   # of which the dearest section,
    int samples[STORES_KINDS]      # in so many sections;
    double written[STORES_KINDS]   # what one did in the last trial,
    double cost[STORES_KINDS]  # and with the readers' cost
    # As a reader, by the kind of the stores that were read.
    double read[STORES_KINDS]
    uint32_t reads[STORES_KINDS]       # since that kind came up again
    uint32_t last_read[STORES_KINDS]   # number of the last such read among all reads
    uint32_t all_reads
    size_t unread[STORES_KINDS]        # bytes since the last sample


# The choices of one rank in one communicator.
cdef struct StoreChoices:
    int fixed                  # the kind that Config.stores names; -1: the cheapest is looked for
    StoreClass *classes        # COLLECTIVES x STORE_CLASSES


# The state of one rank in one communicator. Private to the rank; what is shared is in the mapping.
cdef struct Team:
    char *base
    Layout layout
    Status *status             # our own line of the control pages
    int rank, size
    const DomainView *domains  # where the ranks lie
    int *scratch               # room for two lists of ranks
    # How to wait (agreed once per communicator).
    int polls                  # before a wait yields, where this rank has its CPU for itself
    int spin                   # the same now: 0 while another rank was last seen on this CPU
    bint oversubscribed
    # By collective, from how many bytes on (SIZE_MAX: never) ...
    size_t streaming_from[COLLECTIVES]    # ... a rank's result is written around the caches
    size_t kernel_copy_from[COLLECTIVES]  # ... what a rank hands out is read through the kernel
    const HeapView *heaps      # every rank's shared heap; NULL: this communicator has none
    size_t direct_from[COLLECTIVES]       # ... a message is read in its sender's heap
    const OtherProcess *processes  # every rank's; NULL: they can't read each other's memory
    StoreChoices stores        # how it writes what others read (stores.pyx)
    uint64_t direct_bytes      # of this call, moved to or from other ranks' arrays without staging
    # Counters: functions of the sequence of calls only, hence the same on every rank.
    uint64_t number            # calls of the user's so far, this one included
    uint64_t call              # calls published so far: one of the user's may have several stages
    uint64_t tick              # segment flags are tick + step; a call moves it past all its steps
    uint64_t exchanges         # synchronising exchanges so far: flags of exchange lines
    uint64_t rooted            # rooted inline slots used so far: flags of rooted lines
    BankCursor segments
    BankCursor inline_slots
    int writer                 # of two ranks, who stored where only one did last; -1: nobody yet
    uint64_t proven[2][MAX_BANKS]   # [kind][bank]: last pass that all ranks let us write in
    # The current call.
    uint64_t signature, nbytes
    uint64_t history           # a hash of the signatures and bytes of all calls before,
    uint64_t next_history      # and of this one, too
    uint64_t mark              # 40 bits of the call's number, 24 of the history: in all its lines
    uint64_t tried_in          # `number` of the last that tried an algorithm; 0: none has
    # Whom we wait for.
    const uint64_t *awaited
    uint64_t awaited_value
    int awaited_rank
    bint wait_is_published     # Status.awaited says so
    # Who attends to everything else while we wait.
    void *attendant            # borrowed: waiting.Attendant
    PyThreadState *thread_state   # set while this call has released the GIL
    bint holds_gil
    int64_t attended           # when the attendant was last called, or MPI driven by a wait for it
    int64_t attendant_called   # when it was called itself (monotonic ns, both)
    int64_t attend_every
    int64_t began              # the last call (monotonic ns), of more than a few ranks
    uint64_t woken             # how often another rank, by beginning a call, cut a pause short
    int64_t sleep_after        # a wait that is longer (ns) sleeps between its polls
    uint32_t calls_since_look  # at the clock: whether to attend


# The i-th rank after ours: so that not all ranks read the same line first.
cdef inline int next_rank(const Team *team, int i) noexcept nogil:
    return team.rank + i if team.rank + i < team.size else team.rank + i - team.size
