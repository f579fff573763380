"""Broadcast by a scatter and an allgather. Along trees: ``tree``."""

from smcoll.coll.pipeline cimport (
    SOME_STORE, Call, Section, complete, cut, deliver, heard, offer, plan_call, post, put, region,
    writable,
)
from smcoll.sync.team cimport DONE, next_rank

cdef enum:
    STEP_DATA = 1
    STEP_SLICE = 2


cdef api int bcast_scatter_allgather(Call *call) noexcept nogil:
    """Each rank copies a slice from the root, then all slices from each other.

    So the root's memory is read once, not once for each rank (Thakur, Rabenseifner & Gropp 2005).
    """
    plan_call(call, 2, call.plan.section_bytes, SOME_STORE)
    call.phase[0] = take_slice
    call.phase[1] = gather_slices
    return complete(call)


cdef int take_slice(Call *call, Section *section) noexcept nogil:
    """The root posts the data, its own slice with them; each rank copies its slice for the others.
    """
    cdef int rank = call.team.rank, status
    cdef size_t begin = cut(section.nbytes, 1, call.team.size, rank)
    cdef size_t end = cut(section.nbytes, 1, call.team.size, rank + 1)
    if rank == call.root:
        return offer(call, section, STEP_SLICE)
    status = heard(call, section, call.root, STEP_DATA)
    if status == DONE:
        status = writable(call, section)
    if status != DONE:
        return status
    put(call, section, region(call, section, rank) + begin,
        region(call, section, call.root) + begin, end - begin)
    post(call, section, STEP_SLICE)
    return DONE


cdef int gather_slices(Call *call, Section *section) noexcept nogil:
    """All slices from their owners; the root has them."""
    cdef int ranks = call.team.size, owner, status
    cdef size_t begin, end
    if call.team.rank == call.root:
        return DONE
    while section.progress < ranks:
        owner = next_rank(call.team, section.progress)
        if owner != call.team.rank:
            status = heard(call, section, owner, STEP_SLICE)
            if status != DONE:
                return status
        begin = cut(section.nbytes, 1, ranks, owner)
        end = cut(section.nbytes, 1, ranks, owner + 1)
        deliver(call, section, owner, section.offset + begin,
                region(call, section, owner) + begin, end - begin)
        section.progress += 1
    return DONE
