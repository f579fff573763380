from libc.stdint cimport int64_t, uint64_t

from smcoll.algos cimport MAX_ALGORITHMS
from smcoll.base.signature cimport COLLECTIVES, NO_OPERATION, NO_TYPE, pack_signature
from smcoll.coll.allgather cimport Gathering
from smcoll.coll.pipeline cimport Call, Plan
from smcoll.coll.reduce_scatter cimport Blocks
from smcoll.coll.routes cimport RouteChoice
from smcoll.coll.streams cimport Exchange, Transfer
from smcoll.datatype.cursor cimport Cursor
from smcoll.engine.plans cimport MemberWithPlans
from smcoll.engine.reservation cimport CARRIED_OUT, USE_MPI
from smcoll.kernels.kernels cimport Operation, reduction_kernel
from smcoll.sync.waiting cimport condition


cdef struct Tally:
    uint64_t calls, nbytes
    uint64_t direct_bytes      # moved to or from other ranks' arrays without staging
    uint64_t timed_calls
    int64_t timed_ns


cdef class Engine(MemberWithPlans):
    cdef list unfinished       # requests of MPI calls that were interrupted
    cdef Tally tallies[COLLECTIVES][MAX_ALGORITHMS]
    cdef Tally mpi_tallies[COLLECTIVES]

    cdef int64_t started(self, Tally *tally, size_t nbytes) noexcept
    cdef int64_t went_on(self, Tally *tally, size_t nbytes) noexcept
    cdef void finished(self, Tally *tally, int64_t start) noexcept
    cdef void fill_call(self, Call *call, const char *send, char *recv, size_t elements,
                        size_t unit, const Operation *operation, int root) noexcept nogil
    cdef int allreduce_nogil(self, const void *send, void *recv, size_t elements, int element_type,
                             int op) except -1 nogil
    cdef int wait_outside(self, condition holds, void *context, int64_t sleep_after) noexcept
    cdef int complete_outside(self, condition holds, void *context) except -1
    cdef int carry_out_stage(self, int collective, uint64_t signature, uint64_t nbytes,
                             Call *call, const Plan *plan, void *details) except -1
    cdef int carry_out(self, int collective, uint64_t signature, Call *call,
                       const Plan *plan, void *details) except -1
    cdef int exchange_(self, int collective, int root, Transfer *outgoing, int sends,
                       Transfer *incoming, int receives, size_t nbytes, list grown,
                       int algorithm=*, bint second_stage=*, Cursor *own=*,
                       Cursor *own_place=*) except -1
    cdef bint may_be_read(self, int collective, const Transfer *outgoing, int sends,
                          RouteChoice **choice) noexcept
    cdef int exchange_stage(self, uint64_t signature, Transfer *outgoing, int sends,
                            Transfer *incoming, int receives, list grown) except -1
    cdef int run_exchange(self, Exchange *exchange, int collective, Transfer *outgoing, int sends,
                          Transfer *incoming, int receives, list grown) noexcept
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
    cdef reduction_kernel kernel_of(self, int op, int element_type) noexcept


# What the ranks compare of a call: pack_signature's fields.
cdef inline uint64_t signature_of(int collective, int op, int element_type, const Plan *plan,
                                  int root) noexcept nogil:
    return pack_signature(collective, op, element_type, plan.algorithm, 0, 0, root)


cdef inline uint64_t stream_signature(int collective, int root) noexcept nogil:
    return pack_signature(collective, NO_OPERATION, NO_TYPE, 0, 0, 0, root)
