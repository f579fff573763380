"""Which calls from C MPI itself carries out, because it was measured to be faster there.

The calls of a class (a function, a power of two of bytes) are compared with the MPI's own function
where a program makes many of them: by turns a block of calls through shared memory and one by MPI,
each ended by a Barrier of MPI's. Behind each such round the ranks add up their times, with one
Allreduce of MPI's. So all have the same figures and draw the same conclusion, at the same call of
the class.

What counts is how long a block takes, from its first call to the end of its Barrier: whoever runs
ahead, as the root of a Bcast may, waits there for the others. (A short call is not timed by itself:
two looks at the clock take as long.) What a program does between its calls counts on both sides
alike, which brings the ratio nearer to 1: then nothing changes.
"""

cimport cython
from libc.stdint cimport int64_t

from smcoll.engine.plans cimport SIZE_CLASSES, size_class
from smcoll.interpose.functions cimport (
    ALLGATHERV, BARRIER, FUNCTIONS, REDUCE_SCATTER)

from smcoll.interpose.functions import NAMES

cdef int64_t NEVER = <int64_t> 1 << 62

cdef enum:
    # Calls of a class before the first comparison: the communicator itself has tried its
    # algorithms by then (docs/learning.md). Short ones are compared in longer blocks, since the
    # Barrier behind them is to be a small part, so they begin later. All these are chosen.
    LONGEST_SHORT = 12         # class of calls of 4 KiB
    FIRST_OF_SHORT = 4096
    FIRST = 512
    BLOCK_OF_SHORT = 200
    BLOCK = 10
    # Where a length is given for each rank: one class may hold short and long calls, and derived
    # types, common there, go through Python: waiting for as many as elsewhere would cost more.
    FIRST_WITH_LENGTHS = 256
    BLOCK_WITH_LENGTHS = 20
    # The next one comes after so many times as many calls, but not more than so many later:
    # neighbours and distances change. A comparison makes at most 1000 short calls twice as long,
    # 0.5 % of all; where MPI was far behind, 400 may take 20 times as long.
    AGAIN_AFTER = 4
    AGAIN_AT_LATEST = 200000
    AGAIN_AFTER_FAR_BEHIND = 16
    AGAIN_AT_LATEST_FAR_BEHIND = 2000000

# MPI's time divided by smcoll's.
cdef double FAR_BEHIND = 2.0       # two rounds are enough
cdef double FASTER = 0.95          # MPI takes over: a change has to be worth it


@cython.final
cdef class CallsFromC:
    """What one rank knows of one communicator's calls from C, as Python sees it."""

    def __cinit__(self, named):
        """``named``: collectives whose algorithm the settings name; nothing is chosen there."""
        cdef int function, size
        for function in range(FUNCTIONS):
            for size in range(SIZE_CLASSES):
                first, block = (
                    (FIRST_WITH_LENGTHS, BLOCK_WITH_LENGTHS) if has_lengths(function) else
                    (FIRST_OF_SHORT, BLOCK_OF_SHORT) if size <= LONGEST_SHORT else (FIRST, BLOCK))
                self.classes[function][size].compare_at = (
                    NEVER if collective_of(function) in named else first)
                self.classes[function][size].block = block

    def explain(self, asked, size_t nbytes):
        """What was found of such calls, in words; None: they were not compared. ``asked``: the
        function's name in small letters; ``nbytes``: that one rank sends to one other, or
        contributes."""
        cdef CallClass *kind
        for function in range(FUNCTIONS):
            kind = &self.classes[function][0 if is_one_class(function) else size_class(nbytes)]
            if NAMES[function].lower() == asked and kind.measured_at > 0:
                side = "MPI" if kind.is_mpis else "shared memory"
                return (f"calls from C by {side}: after {kind.measured_at} calls "
                        f"{kind.ns[0] / 1000:.3g} us through shared memory, "
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
    """As ``Comm.explain`` names it: one name for all its forms."""
    return NAMES[function].lower().removesuffix("_block").rstrip("vw")


cdef bint has_lengths(int function):
    """Whether its callers give a length for each rank."""
    return function in (ALLGATHERV, REDUCE_SCATTER) or (
        function != BARRIER and is_one_class(function))


cdef void decide_side(CallClass *kind, const double *taken, int ranks) noexcept nogil:
    """After a round, with the times of all ranks: go on, or draw the conclusion."""
    cdef double middle
    cdef int64_t pause = min((AGAIN_AFTER - 1) * kind.calls, <int64_t> AGAIN_AT_LATEST)
    cdef int side
    for side in range(2):
        kind.ns[side] = max(taken[side], 1.0) / (ranks * kind.block)
    kind.ratio[kind.rounds] = kind.ns[1] / kind.ns[0]
    kind.rounds += 1
    kind.turn = 0
    if kind.rounds == 2 and min(kind.ratio[0], kind.ratio[1]) > FAR_BEHIND:
        kind.is_mpis = False
        pause = min((AGAIN_AFTER_FAR_BEHIND - 1) * kind.calls,
                    <int64_t> AGAIN_AT_LATEST_FAR_BEHIND)
    elif kind.rounds < ROUNDS:
        return
    else:
        middle = median(kind.ratio, ROUNDS)
        # Who has the calls keeps them unless the other is faster.
        kind.is_mpis = middle < (1.0 if kind.is_mpis else FASTER)
    kind.rounds = 0
    kind.measured_at = kind.calls
    kind.compare_at = kind.calls + pause


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
