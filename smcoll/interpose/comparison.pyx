"""Which calls from C MPI itself carries out, because it was measured to be faster there.

The calls of a class (a function, a power of two of bytes) are compared with the MPI's own function
where a program makes many of them: by turns ten calls through shared memory and ten by MPI. Behind
each such round the ranks add up their times, with one Allreduce of MPI's. So all have the same
figures and draw the same conclusion, at the same call of the class.

What counts is the time that all ranks spend in the calls. (From the last rank's arrival on, as
``engine.learning`` measures, would say nothing of a Bcast whose root runs ahead.) Who waits for a
late rank waits on both sides alike, which brings the ratio nearer to 1: then nothing changes.
"""

cimport cython
from libc.stdint cimport int64_t

from smcoll.engine.plans cimport SIZE_CLASSES, size_class
from smcoll.interpose.functions cimport FUNCTIONS

from smcoll.interpose.functions import NAMES

cdef int64_t NEVER = <int64_t> 1 << 62

cdef enum:
    # Calls of a class before the first comparison: the communicator itself has tried its
    # algorithms by then (docs/learning.md). Chosen, as the two factors.
    FIRST = 512
    # The next one comes after so many times as many calls: neighbours and distances change. Where
    # MPI was far behind, as seldom as that costs nothing.
    AGAIN_AFTER = 4
    AGAIN_AFTER_FAR_BEHIND = 16

# MPI's time divided by smcoll's.
cdef double FAR_BEHIND = 2.0       # one round is enough
cdef double FASTER = 0.97          # MPI takes over: a change has to be worth it


@cython.final
cdef class CallsFromC:
    """What one rank knows of one communicator's calls from C, as Python sees it."""

    def __cinit__(self, named):
        """``named``: collectives whose algorithm the settings name; nothing is chosen there."""
        cdef int function, size
        for function in range(FUNCTIONS):
            for size in range(SIZE_CLASSES):
                self.classes[function][size].compare_at = (
                    NEVER if collective_of(function) in named else FIRST)

    def explain(self, collective, size_t nbytes):
        """What was found of such calls, in words; None: they were not compared."""
        cdef CallClass *kind
        for function in range(FUNCTIONS):
            kind = &self.classes[function][size_class(nbytes)]
            if collective_of(function) == collective and kind.ns[1] > 0:
                return (f"calls from C by {'MPI' if kind.is_mpis else 'shared memory'}: after "
                        f"{kind.calls} calls {kind.ns[0] / 1000:.3g} us through shared memory, "
                        f"{kind.ns[1] / 1000:.3g} us by MPI")
        return None

    def stats(self):
        """Rows of ``Comm.stats()`` for the calls that MPI carried out."""
        cdef int function, size
        rows = []
        for function in range(FUNCTIONS):
            calls = sum(self.classes[function][size].by_mpi for size in range(SIZE_CLASSES))
            if calls > 0:
                rows.append({"collective": collective_of(function), "algorithm": "MPI's own",
                             "path": "MPI", "calls": calls, "from_c": calls, "bytes": 0,
                             "seconds": 0.0, "direct_bytes": 0,
                             "reason": "measured beside shared memory"})
        return rows


cdef collective_of(int function):
    """As ``Comm.explain`` names it."""
    return NAMES[function].lower().removesuffix("_block")


cdef bint round_is_over(CallClass *kind, int64_t ns) noexcept nogil:
    """A call of a comparison took so long on this rank: True where the ranks are to add up."""
    if kind.turn % BLOCK >= NOT_COUNTED:
        kind.taken[kind.turn // BLOCK] += ns
    kind.turn += 1
    return kind.turn == 2 * BLOCK


cdef void decide_side(CallClass *kind, const double *taken, int ranks) noexcept nogil:
    """After a round, with the times of all ranks: go on, or draw the conclusion."""
    cdef double middle
    cdef int side, factor = AGAIN_AFTER
    for side in range(2):
        kind.ns[side] = max(taken[side], 1.0) / (ranks * (BLOCK - NOT_COUNTED))
        kind.taken[side] = 0
    kind.ratio[kind.rounds] = kind.ns[1] / kind.ns[0]
    kind.rounds += 1
    kind.turn = 0
    if kind.rounds == 1 and kind.ratio[0] > FAR_BEHIND:
        kind.is_mpis = False
        factor = AGAIN_AFTER_FAR_BEHIND
    elif kind.rounds < ROUNDS:
        return
    else:
        middle = median(kind.ratio, ROUNDS)
        # Who has the calls keeps them unless the other is faster.
        kind.is_mpis = middle < (1.0 if kind.is_mpis else FASTER)
    kind.rounds = 0
    kind.compare_at = factor * kind.calls


cdef double median(double *values, int count) noexcept nogil:
    """Sorts them."""
    cdef int i, j
    cdef double value
    for i in range(1, count):
        value = values[i]
        j = i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value
    return values[count // 2]
