"""The barriers of ``smcoll.barrier`` as algorithms of the collective; they carry no data."""

from smcoll.barrier cimport barrier_all_read as all_read
from smcoll.barrier cimport barrier_dissemination as dissemination
from smcoll.coll.pipeline cimport Call


cdef api int barrier_all_read(Call *call) noexcept nogil:
    """Every rank reads every rank's flag."""
    return all_read(call.team)


cdef api int barrier_dissemination(Call *call) noexcept nogil:
    """log2(p) steps, each to a rank twice as far (Hensgen, Finkel & Manber 1988)."""
    return dissemination(call.team)
