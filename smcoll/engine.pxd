from libc.stdint cimport int64_t, uint64_t

from smcoll.algos cimport Operands, Plan
from smcoll.allgather cimport Gathering
from smcoll.barrier cimport Attendant, Team, condition, pack_signature
from smcoll.buffers cimport Specification
from smcoll.cursor cimport Cursor
from smcoll.domains cimport Domains
from smcoll.heap cimport HeapView
from smcoll.kernels cimport Operation, reduction_kernel
from smcoll.reduce_scatter cimport Blocks
from smcoll.segment cimport Mapping
from smcoll.streams cimport Exchange, Stream, Transfer
from smcoll.trees cimport Tree

cdef enum:
    COLLECTIVES = 20           # one more than the largest number in barrier.pxd, rounded up
    MAX_CHOICES = 18      # a table's rows (tables.MOST_ROWS), and two more where arrays are shared
    MAX_ALGORITHMS = 16

# What the engine's collectives return.
cdef enum:
    CARRIED_OUT = 0
    USE_MPI = 1                # agreed by all ranks: the shared memory could not be had

# What is reserved when a call first needs it.
cdef enum:
    DATA_REGIONS = 0
    STREAMS = 1


cdef struct Choice:
    size_t up_to               # largest nbytes this row is for
    Plan plan


cdef struct Tally:
    uint64_t calls, nbytes
    uint64_t direct_bytes      # moved to or from other ranks' arrays without staging
    uint64_t timed_calls
    int64_t timed_ns


cdef class Engine:
    cdef Team team
    cdef Mapping mapping
    cdef Attendant attendant
    cdef readonly Domains domains
    cdef readonly object config
    cdef readonly object decisions
    cdef readonly bint data_refused
    cdef readonly bint streams_refused
    cdef readonly bint closed
    cdef dict trees
    cdef dict plans            # per-call choices that were made before
    cdef list unfinished       # requests of MPI calls that were interrupted
    cdef const void **sources
    cdef int *scratch
    cdef uint64_t start        # where all counters began
    cdef object heaps          # keeps the peers' heaps mapped
    cdef HeapView *heap_views
    cdef Stream *streams       # one per rank, once the streams are reserved
    cdef bint continues        # the next call is a later stage of one that the peers are in
    cdef Choice table[COLLECTIVES][MAX_CHOICES]
    cdef int choices[COLLECTIVES]
    cdef Tally tallies[COLLECTIVES][MAX_ALGORITHMS]
    cdef Tally mpi_tallies[COLLECTIVES]
    cdef int instruction_set
    cdef object failure
    cdef bint unusable         # failed or closed
    cdef bint warned
    cdef int64_t looked_at_all     # when a wait last looked at all ranks' lives (monotonic ns)
    cdef object roles          # of other nodes' leaders, by the rank, in words: for messages
    cdef list names            # of a node's ranks, as the communicator that spans it numbers them
    cdef double patience       # times the set timeout: who waits for a waiting rank gives up later
    cdef object outside        # ranks of another node that this one waits for
    cdef object budget
    cdef object __weakref__

    cdef use_heaps(self, heaps)
    cdef void keep(self, const void *buffer) noexcept nogil
    cdef bint has_left(self, int rank)
    cdef bint has_died(self, int rank)
    cdef bint owes_us(self, int rank, int awaited)
    cdef Tree tree(self, int radix)
    cdef Plan plan(self, int collective, decision)
    cdef Plan overridden(self, collective, size_t nbytes, algorithm, fan_in, fan_out,
                         section_bytes, pipelined, arity)
    cdef check_root(self, int root)
    cdef int check_reduction(self, Specification send, Specification recv, op) except -1
    cdef check_carried_out(self, int path)
    cdef void release_gil_if_long(self, size_t nbytes) noexcept
    cdef int64_t started(self, Tally *tally, size_t nbytes) noexcept
    cdef int64_t went_on(self, Tally *tally, size_t nbytes) noexcept
    cdef void finished(self, Tally *tally, int64_t start) noexcept
    cdef void fill_operands(self, Operands *operands, const char *send, char *recv,
                            size_t elements, size_t unit, const Operation *operation,
                            int root) noexcept nogil
    cdef int enter(self) except -1
    cdef int enter_without_gil(self) noexcept nogil
    cdef int leave_for_good(self, int status) except -1
    cdef int explain_refusal(self, int status) except -1
    cdef int allreduce_nogil(self, const void *send, void *recv, size_t elements, int element_type,
                             int op) except -1 nogil
    cdef void take_gil_back(self) noexcept
    cdef int leave(self, int status) except -1
    cdef const Plan *choose(self, int collective, size_t nbytes) noexcept nogil
    cdef int have_data_regions(self, int collective, const Plan *plan, size_t nbytes,
                               uint64_t signature) except -1
    cdef int have_streams(self, uint64_t signature) except -1
    cdef reserve_part(self, int part)
    cdef map_of_peers(self, int part)
    cdef reserve_mine(self, int part, size_t wanted)
    cdef int reserve(self, int part, uint64_t signature, uint64_t nbytes) except -1
    cdef int wait_outside(self, condition holds, void *context, int64_t sleep_after) noexcept
    cdef int complete_outside(self, condition holds, void *context) except -1
    cdef int carry_out_stage(self, int collective, uint64_t signature, uint64_t nbytes,
                             const Operands *operands, const Plan *plan, void *details) except -1
    cdef int carry_out(self, int collective, uint64_t signature, const Operands *operands,
                       const Plan *plan, void *details) except -1
    cdef int exchange_(self, int collective, int root, Transfer *outgoing, int sends,
                       Transfer *incoming, int receives, size_t nbytes, list grown,
                       int algorithm=*, bint second_stage=*, Cursor *own=*,
                       Cursor *own_place=*) except -1
    cdef int exchange_stage(self, uint64_t signature, Transfer *outgoing, int sends,
                            Transfer *incoming, int receives, list grown) except -1
    cdef int run_exchange(self, Exchange *exchange, Transfer *outgoing, int sends,
                          Transfer *incoming, int receives, size_t nbytes, list grown) noexcept
    cdef place(self, Transfer *message, list grown)
    cdef int barrier_(self, const Plan *plan) except -1
    cdef int bcast_(self, char *buffer, size_t nbytes, int root, const Plan *plan,
                    int collective=*) except -1
    cdef int reduction_(self, int collective, const char *send, char *recv, size_t elements,
                        int element_type, int op, int root, const Plan *plan) except -1
    cdef int reduce_(self, const char *send, char *recv, size_t elements, int element_type, int op,
                     int root, const Plan *plan) except -1
    cdef int allreduce_(self, const char *send, char *recv, size_t elements, int element_type,
                        int op, const Plan *plan) except -1
    cdef int reduce_scatter_(self, const char *send, char *recv, const Blocks *blocks,
                             int element_type, int op, const Plan *plan) except -1
    cdef int allgather_(self, Gathering *blocks, int collective, const Plan *plan) except -1
    cdef bint holds(self, const Plan *plan, size_t element) noexcept
    cdef const Plan *ordered_plan(self, collective, size_t nbytes, bint commutes) except NULL
    cdef reduction_kernel kernel_of(self, int op, int element_type) noexcept


# What the ranks compare of a call: pack_signature's fields, 31 and 63 for no operation and type.
cdef inline uint64_t signature_of(int collective, int op, int element_type, const Plan *plan,
                                  int root) noexcept nogil:
    return pack_signature(collective, op, element_type, plan.algorithm, 0, 0, root)


cdef inline uint64_t stream_signature(int collective, int root) noexcept nogil:
    return pack_signature(collective, 31, 63, 0, 0, 0, root)
