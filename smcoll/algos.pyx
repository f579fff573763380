"""Runs the algorithm of a number: the front of the algorithms.

A name runs that algorithm and no other. Which form it takes for small messages (data in the flag
lines instead of the data regions) depends on the number of bytes only, which all ranks agree on.
"""

from importlib import import_module

from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer

from smcoll.barrier cimport use_segments
from smcoll.base.signature cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_ALLREDUCE, COLLECTIVE_ALLTOALL, COLLECTIVE_BARRIER,
    COLLECTIVE_BCAST, COLLECTIVE_EXSCAN, COLLECTIVE_GATHER, COLLECTIVE_OBJECT_ALLGATHER,
    COLLECTIVE_OBJECT_ALLREDUCE, COLLECTIVE_OBJECT_ALLTOALL, COLLECTIVE_OBJECT_BCAST,
    COLLECTIVE_OBJECT_EXSCAN, COLLECTIVE_OBJECT_GATHER, COLLECTIVE_OBJECT_REDUCE,
    COLLECTIVE_OBJECT_SCAN, COLLECTIVE_OBJECT_SCATTER, COLLECTIVE_REDUCE,
    COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_SCAN, COLLECTIVE_SCATTER, COLLECTIVES,
    allgathers_objects,
)
from smcoll.coll.pipeline cimport Call

from smcoll.algorithms import ALGORITHMS, EXCHANGE, TABLE

COLLECTIVE_NUMBERS = {
    "barrier": COLLECTIVE_BARRIER,
    "bcast": COLLECTIVE_BCAST,
    "reduce": COLLECTIVE_REDUCE,
    "allreduce": COLLECTIVE_ALLREDUCE,
    "gather": COLLECTIVE_GATHER,
    "scatter": COLLECTIVE_SCATTER,
    "alltoall": COLLECTIVE_ALLTOALL,
    "allgather": COLLECTIVE_ALLGATHER,
    "reduce_scatter": COLLECTIVE_REDUCE_SCATTER,
    "scan": COLLECTIVE_SCAN,
    "exscan": COLLECTIVE_EXSCAN,
}

# The lower-case ones, which have no choice of their own.
OBJECT_COLLECTIVES = {
    "bcast_objects": COLLECTIVE_OBJECT_BCAST,
    "gather_objects": COLLECTIVE_OBJECT_GATHER,
    "scatter_objects": COLLECTIVE_OBJECT_SCATTER,
    "allgather_objects": COLLECTIVE_OBJECT_ALLGATHER,
    "alltoall_objects": COLLECTIVE_OBJECT_ALLTOALL,
    "reduce_objects": COLLECTIVE_OBJECT_REDUCE,
    "allreduce_objects": COLLECTIVE_OBJECT_ALLREDUCE,
    "scan_objects": COLLECTIVE_OBJECT_SCAN,
    "exscan_objects": COLLECTIVE_OBJECT_EXSCAN,
}

# Which flag lines carry small messages.
cdef enum Lines:
    NO_LINES
    EXCHANGE_LINES
    ROOTED_LINES

ctypedef int (*run_function)(Call *) noexcept nogil


# A line of algorithms.TABLE.
cdef struct Entry:
    run_function run
    run_function run_inline
    Lines lines


cdef Entry table[COLLECTIVES][MAX_ALGORITHMS]


cdef run_function function_of(str name) except? NULL:
    """The C function ``file.function`` below ``coll/``: one that is ``api``, or in its ``.pxd``."""
    file, _, function = name.partition(".")
    capsule = import_module(f"smcoll.coll.{file}").__pyx_capi__[function]
    kind = PyCapsule_GetName(capsule)
    if not kind.startswith(b"int (struct ") or not kind.endswith(b"pipeline_Call *)"):
        raise TypeError(f"{name} is no function of a Call: {kind.decode()}")
    return <run_function> PyCapsule_GetPointer(capsule, kind)


cdef fill_table():
    cdef Entry *entry
    cdef int i, collective
    if max(map(len, ALGORITHMS.values())) > MAX_ALGORITHMS:
        raise ValueError(f"a collective has more than {MAX_ALGORITHMS} algorithms")
    for row in TABLE:
        entry = &table[<int> COLLECTIVE_NUMBERS[row.collective]][
            <int> ALGORITHMS[row.collective].index(row.name)]
        if row.function is not None:
            entry.run = function_of(row.function)
        if row.inline is not None:
            entry.run_inline = function_of(row.inline)
            entry.lines = EXCHANGE_LINES if row.lines == EXCHANGE else ROOTED_LINES
    for i in range(MAX_ALGORITHMS):
        table[COLLECTIVE_OBJECT_BCAST][i] = table[COLLECTIVE_BCAST][i]
        for collective in range(COLLECTIVES):
            if allgathers_objects(collective):
                table[collective][i] = table[COLLECTIVE_ALLGATHER][i]


fill_table()


cdef inline bint fits(const Team *team, const Entry *entry, size_t nbytes) noexcept nogil:
    if entry.lines == EXCHANGE_LINES:
        return nbytes <= team.layout.inline_size
    return entry.lines == ROOTED_LINES and nbytes <= team.layout.rooted_inline_size


cdef bint is_inline(const Team *team, int collective, int algorithm, size_t nbytes) noexcept nogil:
    """Whether the data of such a call travel in the flag lines.

    ``nbytes``: of the longest block in an Allgather, of the whole vector in a Reduce_scatter.
    """
    return fits(team, &table[collective][algorithm], nbytes)


cdef bint needs_data_regions(const Team *team, int collective, int algorithm,
                             size_t nbytes) noexcept nogil:
    return nbytes > 0 and not is_inline(team, collective, algorithm, nbytes)


cdef int run_collective(Call *call, int collective) noexcept nogil:
    """Run the algorithm that ``call.plan`` names."""
    cdef const Entry *entry = &table[collective][call.plan.algorithm]
    call.exclusive = collective == COLLECTIVE_EXSCAN
    call.in_lines = fits(call.team, entry, call.nbytes)
    if call.in_lines:
        return entry.run_inline(call)
    call.streaming = call.nbytes >= call.team.streaming_from[collective]
    call.chosen = NULL
    use_segments(call.team, call.plan.segments)
    return entry.run(call)
