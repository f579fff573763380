from libc.stdint cimport int64_t, uint64_t

from smcoll.algos cimport Operands, Plan
from smcoll.barrier cimport Attendant, Team
from smcoll.buffers cimport Specification
from smcoll.kernels cimport reduction_kernel
from smcoll.segment cimport Mapping
from smcoll.trees cimport Tree

cdef enum:
    COLLECTIVES = 8            # one more than the largest number in barrier.pxd, rounded up
    MAX_CHOICES = 16
    MAX_ALGORITHMS = 8

# What the engine's collectives return.
cdef enum:
    CARRIED_OUT = 0
    USE_MPI = 1                # agreed by all ranks: the data regions could not be had


cdef struct Choice:
    size_t up_to               # largest nbytes this row is for
    Plan plan


cdef struct Tally:
    uint64_t calls, nbytes
    uint64_t timed_calls
    int64_t timed_ns


cdef class Engine:
    cdef Team team
    cdef Mapping mapping
    cdef Attendant attendant
    cdef readonly object config
    cdef readonly object decisions
    cdef readonly bint data_refused
    cdef readonly bint closed
    cdef dict trees
    cdef dict plans            # per-call choices that were made before
    cdef list unfinished       # requests of MPI calls that were interrupted
    cdef const void **sources
    cdef Choice table[COLLECTIVES][MAX_CHOICES]
    cdef int choices[COLLECTIVES]
    cdef Tally tallies[COLLECTIVES][MAX_ALGORITHMS]
    cdef Tally mpi_tallies[COLLECTIVES]
    cdef int instruction_set
    cdef object failure
    cdef bint warned
    cdef int blamed
    cdef object budget
    cdef object __weakref__

    cdef Tree tree(self, int radix)
    cdef Plan plan(self, int collective, decision)
    cdef Plan overridden(self, collective, size_t nbytes, algorithm, fan_in, fan_out,
                         section_bytes, pipelined)
    cdef check_root(self, int root)
    cdef int check_reduction(self, Specification send, Specification recv, op) except -1
    cdef check_carried_out(self, int path)
    cdef void release_gil_if_long(self, size_t nbytes) noexcept
    cdef int64_t started(self, Tally *tally, size_t nbytes) noexcept
    cdef void finished(self, Tally *tally, int64_t start) noexcept
    cdef void fill_operands(self, Operands *operands, const char *send, char *recv,
                            size_t elements, int element_type, int op, int root) noexcept
    cdef int enter(self) except -1
    cdef void take_gil_back(self) noexcept
    cdef int leave(self, int status) except -1
    cdef const Plan *choose(self, int collective, size_t nbytes) noexcept
    cdef int have_data_regions(self, int collective, const Plan *plan, size_t nbytes,
                               uint64_t signature) except -1
    cdef int reserve(self, uint64_t signature, uint64_t nbytes) except -1
    cdef int barrier_(self, const Plan *plan) except -1
    cdef int bcast_(self, char *buffer, size_t nbytes, int root, const Plan *plan) except -1
    cdef int reduce_(self, const char *send, char *recv, size_t elements, int element_type, int op,
                     int root, const Plan *plan) except -1
    cdef int allreduce_(self, const char *send, char *recv, size_t elements, int element_type,
                        int op, const Plan *plan) except -1
    cdef reduction_kernel kernel_of(self, int op, int element_type) noexcept
