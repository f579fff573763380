"""The functions of an algorithm, by its number: ``algorithms.TABLE`` in C.

A name runs that algorithm and no other.
"""

from importlib import import_module

from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer

from smcoll.base.signature cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_ALLREDUCE, COLLECTIVE_ALLTOALL, COLLECTIVE_BARRIER,
    COLLECTIVE_BCAST, COLLECTIVE_EXSCAN, COLLECTIVE_GATHER, COLLECTIVE_OBJECT_ALLGATHER,
    COLLECTIVE_OBJECT_ALLREDUCE, COLLECTIVE_OBJECT_ALLTOALL, COLLECTIVE_OBJECT_BCAST,
    COLLECTIVE_OBJECT_EXSCAN, COLLECTIVE_OBJECT_GATHER, COLLECTIVE_OBJECT_REDUCE,
    COLLECTIVE_OBJECT_SCAN, COLLECTIVE_OBJECT_SCATTER, COLLECTIVE_REDUCE,
    COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_SCAN, COLLECTIVE_SCATTER, COLLECTIVES,
)
from smcoll.coll.pipeline cimport EXCHANGE_LINES, ROOTED_LINES, Functions, run_function

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
COLLECTIVE_NAMES = {number: name for name, number in COLLECTIVE_NUMBERS.items()}

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

cdef Functions table[COLLECTIVES][MAX_ALGORITHMS]


cdef run_function c_function(str name) except? NULL:
    """The C function ``file.function`` below ``coll/``: one that is ``api``, or in its ``.pxd``."""
    file, _, function = name.partition(".")
    capsule = import_module(f"smcoll.coll.{file}").__pyx_capi__[function]
    kind = PyCapsule_GetName(capsule)
    if not kind.startswith(b"int (struct ") or not kind.endswith(b"pipeline_Call *)"):
        raise TypeError(f"{name} is no function of a Call: {kind.decode()}")
    return <run_function> PyCapsule_GetPointer(capsule, kind)


cdef fill_table():
    cdef Functions *functions
    if max(map(len, ALGORITHMS.values())) > MAX_ALGORITHMS:
        raise ValueError(f"a collective has more than {MAX_ALGORITHMS} algorithms")
    for row in TABLE:
        functions = &table[<int> COLLECTIVE_NUMBERS[row.collective]][
            <int> ALGORITHMS[row.collective].index(row.name)]
        if row.function is not None:
            functions.run = c_function(row.function)
        if row.inline is not None:
            functions.run_inline = c_function(row.inline)
            functions.lines = EXCHANGE_LINES if row.lines == EXCHANGE else ROOTED_LINES


fill_table()


cdef const Functions *functions_of(int collective, int algorithm) noexcept nogil:
    return &table[collective][algorithm]
