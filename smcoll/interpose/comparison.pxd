cimport cython
from libc.stdint cimport int64_t

from smcoll.engine.plans cimport SIZE_CLASSES
from smcoll.interpose.functions cimport (
    ALLTOALLV, ALLTOALLW, BARRIER, FUNCTIONS, GATHERV, SCATTERV)

cdef enum:
    ROUNDS = 5                 # of one comparison


# Calls of one function with 2^c bytes, or fewer but more than half of that; of all sizes where no
# rank knows the lengths of all. The same on all ranks, but for the times.
cdef struct CallClass:
    int64_t calls              # so far
    int64_t compare_at         # a comparison begins behind so many
    int64_t measured_at        # calls when a comparison last ended
    int64_t by_mpi             # calls that MPI carried out
    bint is_mpis               # it carries them out, outside of comparisons
    int block                  # calls of each side in a round of a comparison
    int turn                   # calls of this round so far
    int rounds                 # that are complete
    double ratio[ROUNDS]       # MPI's time divided by smcoll's
    double ns[2]               # of a call, on average over ranks, in the last round: smcoll, MPI
    int64_t began              # the block, on this rank (monotonic ns)
    int64_t taken[2]           # ns that the round's blocks took it: smcoll, MPI


@cython.final
cdef class CallsFromC:
    cdef CallClass classes[FUNCTIONS][SIZE_CLASSES]


cdef void decide_side(CallClass *kind, const double *taken, int ranks) noexcept nogil


cdef inline bint is_one_class(int function) noexcept nogil:
    """Whether its calls of all sizes are of one class, the first."""
    return function in (BARRIER, GATHERV, SCATTERV, ALLTOALLV, ALLTOALLW)


cdef inline bint is_compared(const CallClass *kind) noexcept nogil:
    """Whether the next call belongs to a comparison."""
    return kind.calls >= kind.compare_at


cdef inline bint is_for_mpi(const CallClass *kind) noexcept nogil:
    """Whether MPI carries the next call out."""
    return kind.turn >= kind.block if is_compared(kind) else kind.is_mpis
