cimport cython
from libc.stdint cimport int64_t

from smcoll.engine.plans cimport SIZE_CLASSES
from smcoll.interpose.functions cimport FUNCTIONS

cdef enum:
    ROUNDS = 5                 # of one comparison
    NOT_COUNTED = 2            # calls of a block: they find caches and rings as the other side left
    COUNTED = 8                # them,
    BLOCK = 10                 # and all, of each side in a round


# ns, of one side's calls in a round. As doubles, for MPI to add up or compare.
cdef struct Times:
    double arrived[COUNTED]
    double departed[COUNTED]


# Calls of one function with 2^c bytes, or fewer but more than half of that. The same on all ranks,
# but for the times.
cdef struct CallClass:
    int64_t calls              # so far
    int64_t compare_at         # a comparison begins behind so many
    int64_t by_mpi             # calls that MPI carried out
    bint is_mpis               # it carries them out, outside of comparisons
    int turn                   # calls of this round so far
    int rounds                 # that are complete
    double ratio[ROUNDS]       # MPI's time divided by smcoll's
    double ns[2]               # of a call, in the last round: smcoll, MPI
    Times *times               # on this rank: smcoll, MPI; NULL: for want of memory


# One rank's of one communicator.
cdef struct Comparison:
    bint shares_cpus           # ranks do
    CallClass classes[FUNCTIONS][SIZE_CLASSES]


@cython.final
cdef class CallsFromC:
    cdef Comparison comparison


cdef int64_t now(const Comparison *comparison) noexcept nogil
cdef bint round_is_over(const Comparison *comparison, CallClass *kind,
                        int64_t arrived) noexcept nogil
cdef void decide_side(CallClass *kind, const Times *of_all) noexcept nogil


cdef inline bint is_compared(const CallClass *kind) noexcept nogil:
    """Whether the next call belongs to a comparison."""
    return kind.calls >= kind.compare_at


cdef inline bint is_for_mpi(const CallClass *kind) noexcept nogil:
    """Whether MPI carries the next call out."""
    return kind.turn >= BLOCK if is_compared(kind) else kind.is_mpis
