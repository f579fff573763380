"""Published calls in words, for errors and reports."""

from libc.stdint cimport uint64_t

from smcoll.base.signature cimport (
    COLLECTIVE_ALLGATHER, COLLECTIVE_ALLREDUCE, COLLECTIVE_ALLTOALL, COLLECTIVE_BARRIER,
    COLLECTIVE_BCAST, COLLECTIVE_EXSCAN, COLLECTIVE_GATHER, COLLECTIVE_OBJECT_ALLGATHER,
    COLLECTIVE_OBJECT_ALLREDUCE, COLLECTIVE_OBJECT_ALLTOALL, COLLECTIVE_OBJECT_BCAST,
    COLLECTIVE_OBJECT_EXSCAN, COLLECTIVE_OBJECT_GATHER, COLLECTIVE_OBJECT_REDUCE,
    COLLECTIVE_OBJECT_SCAN, COLLECTIVE_OBJECT_SCATTER, COLLECTIVE_REDUCE,
    COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_RESERVE, COLLECTIVE_SCAN, COLLECTIVE_SCATTER,
    collective_in, counts_hash_in, element_type_in, is_carried_out_by_mpi, operation_in, root_in,
)

from smcoll.base import kernels

_COLLECTIVE_TITLES = {
    COLLECTIVE_BARRIER: "Barrier", COLLECTIVE_BCAST: "Bcast", COLLECTIVE_REDUCE: "Reduce",
    COLLECTIVE_ALLREDUCE: "Allreduce", COLLECTIVE_RESERVE: "reserving shared memory",
    COLLECTIVE_GATHER: "Gather", COLLECTIVE_SCATTER: "Scatter",
    COLLECTIVE_ALLGATHER: "Allgather", COLLECTIVE_ALLTOALL: "Alltoall",
    COLLECTIVE_REDUCE_SCATTER: "Reduce_scatter", COLLECTIVE_SCAN: "Scan",
    COLLECTIVE_EXSCAN: "Exscan", COLLECTIVE_OBJECT_BCAST: "bcast",
    COLLECTIVE_OBJECT_GATHER: "gather", COLLECTIVE_OBJECT_SCATTER: "scatter",
    COLLECTIVE_OBJECT_ALLGATHER: "allgather", COLLECTIVE_OBJECT_ALLTOALL: "alltoall",
    COLLECTIVE_OBJECT_REDUCE: "reduce", COLLECTIVE_OBJECT_ALLREDUCE: "allreduce",
    COLLECTIVE_OBJECT_SCAN: "scan", COLLECTIVE_OBJECT_EXSCAN: "exscan",
}
_REDUCTIONS = (COLLECTIVE_REDUCE, COLLECTIVE_ALLREDUCE, COLLECTIVE_REDUCE_SCATTER,
               COLLECTIVE_SCAN, COLLECTIVE_EXSCAN)
_ROOTED = (COLLECTIVE_BCAST, COLLECTIVE_REDUCE, COLLECTIVE_GATHER, COLLECTIVE_SCATTER,
           COLLECTIVE_OBJECT_BCAST, COLLECTIVE_OBJECT_GATHER, COLLECTIVE_OBJECT_SCATTER,
           COLLECTIVE_OBJECT_REDUCE)
# Their lengths are agreed, and compared.
_MEASURED = (*_REDUCTIONS, COLLECTIVE_BCAST, COLLECTIVE_ALLGATHER)
_OP_TITLES = {code: name for name, code in kernels.OPERATIONS.items()}
_TYPE_TITLES = {code: name for name, code in kernels.ELEMENT_TYPES.items()}


def describe_call(uint64_t signature, uint64_t nbytes):
    """A published signature in words: ``Allreduce(SUM, float64, 512 B)``."""
    cdef int collective = collective_in(signature)
    details = []
    if collective in _REDUCTIONS:
        details.append(_OP_TITLES.get(operation_in(signature), "another operation"))
        details.append(_TYPE_TITLES.get(element_type_in(signature), "another type"))
    if collective in _ROOTED:
        details.append(f"root={root_in(signature)}")
    if collective in _MEASURED:
        details.append(f"{nbytes} B")
    if counts_hash_in(signature):
        details.append(f"counts #{counts_hash_in(signature):05x}")
    title = _COLLECTIVE_TITLES.get(collective, f"collective {collective}")
    return f"{title}({', '.join(details)})" if details else title


def is_fallback(uint64_t signature):
    """Whether MPI carries out a published call."""
    return is_carried_out_by_mpi(signature)


def in_words(ranks):
    """[0, 1, 3] -> "ranks 0, 1 and 3"."""
    names = [str(rank) for rank in ranks]
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"
