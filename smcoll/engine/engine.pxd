from libc.stdint cimport uint64_t

from smcoll.base.kernels cimport Operation, reduction_kernel
from smcoll.base.signature cimport NO_OPERATION, NO_TYPE, pack_signature
from smcoll.buffers.messages cimport Messages
from smcoll.coll.allgather cimport Gathering
from smcoll.coll.pipeline cimport Call, Plan
from smcoll.coll.reduce_scatter cimport Partition
from smcoll.coll.routes cimport ROUTE_CLASSES, Detour
from smcoll.engine.member cimport Member
from smcoll.engine.plans cimport Plans
from smcoll.engine.reservation cimport Reservation
from smcoll.engine.statistics cimport Statistics
from smcoll.sync.domains cimport Domains


cdef class Engine:
    cdef readonly int rank, size
    cdef readonly object config
    cdef readonly bint oversubscribed
    cdef readonly Domains domains  # of the ranks
    cdef readonly Plans plans
    cdef readonly Statistics statistics
    cdef Member member         # this rank in its node's shared memory
    cdef Reservation memory    # what of that memory is reserved
    cdef int instruction_set
    cdef const void **sources  # room for every rank's operands, where they lie in one memory
    cdef size_t inline_size, rooted_inline_size    # bytes that a rank's flag lines hold
    # Allgathers of so many bytes may be messages, between two ranks only; and whether they are.
    cdef size_t messages_from
    cdef Detour detours[ROUTE_CLASSES]
    cdef str last_error        # of a call by smcoll.h, a sentence
    cdef public bint from_c    # the call that is being made comes from C
    cdef public object calls_from_c    # an interpose.comparison.CallsFromC; None: there is none

    # What an engine of one node and one over several nodes do differently.
    cdef void go_on(self) noexcept nogil
    cdef void call_is_over(self) noexcept nogil
    cdef int carry_out(self, int collective, uint64_t signature, Call *call,
                       const Plan *plan, void *details) except -1 nogil
    cdef int exchange(self, int collective, int root, Messages messages, size_t nbytes,
                      int algorithm=*, bint second_stage=*) except -1
    cdef int have_streams(self, uint64_t signature, uint64_t nbytes=*) except -1
    cdef bint holds(self, const Plan *plan, size_t element) noexcept nogil
    cdef const Plan *ordered_plan(self, collective, size_t nbytes, bint commutes) except NULL

    # Collectives on raw memory, the same for both. ``holds_gil``: the caller has the GIL, and it
    # may be given up in a wait.
    cdef int barrier_(self, const Plan *plan, bint holds_gil) except -1 nogil
    cdef int bcast_(self, int collective, char *buffer, size_t nbytes, int root, const Plan *plan,
                    bint holds_gil) except -1 nogil
    cdef int reduction_(self, int collective, const char *send, char *recv, size_t elements,
                        int element_type, int op, int root, const Plan *plan,
                        bint holds_gil) except -1 nogil
    cdef int reduce_scatter_(self, const char *send, char *recv, const Partition *blocks,
                             int element_type, int op, const Plan *plan,
                             bint holds_gil) except -1 nogil
    cdef int allgather_(self, Gathering *blocks, int collective, const Plan *plan,
                        bint holds_gil) except -1 nogil
    cdef bint sends_blocks(self, const Plan *plan, size_t longest) noexcept nogil
    cdef int exchange_blocks(self, Gathering *blocks) except -1
    cdef void fill_call(self, Call *call, const char *send, char *recv, size_t elements,
                        size_t unit, const Operation *operation, int root,
                        bint holds_gil=*) noexcept nogil
    cdef reduction_kernel kernel_of(self, int op, int element_type) noexcept nogil


# What the ranks compare of a call: pack_signature's fields.
cdef inline uint64_t signature_of(int collective, int op, int element_type, const Plan *plan,
                                  int root) noexcept nogil:
    return pack_signature(collective, op, element_type, plan.algorithm, root)


cdef inline uint64_t stream_signature(int collective, int root) noexcept nogil:
    return pack_signature(collective, NO_OPERATION, NO_TYPE, 0, root)
