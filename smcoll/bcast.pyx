"""Broadcast through the data regions."""

from libc.string cimport memcpy

from smcoll.pipeline cimport (
    Call, Section, complete, deliver, heard, plan_call, post, region, writable,
)
from smcoll.team cimport DONE, next_rank
from smcoll.tiled cimport cut
from smcoll.trees cimport to_real, to_virtual

cdef enum:
    STEP_DATA = 1
    STEP_SLICE = 2


cdef int bcast_fan_out(Call *call, bint pipelined, size_t section_bytes) noexcept nogil:
    """Fan-out tree of radix m (GS 3.3), a new segment for each section.

    ``call.recv`` is the buffer on every rank, the source at the root.
    """
    plan_call(call, 1, section_bytes, pipelined, False)
    call.phase[0] = fan_out_section
    return complete(call)


cdef int fan_out_section(Call *call, Section *section) noexcept nogil:
    """The root posts the data; a child copies its parent's, for its own children first."""
    cdef int ranks = call.team.size, rank = call.team.rank, status, parent
    cdef int v = to_virtual(rank, call.root, ranks)
    cdef char *own = region(call, section, rank)
    cdef char *user = call.recv + section.offset
    cdef const char *source = user
    if v != 0:
        parent = to_real(call.fan_out.parent[v], call.root, ranks)
        status = heard(call, section, parent, STEP_DATA)
        if status != DONE:
            return status
        source = region(call, section, parent)
    if call.fan_out.children[v] > 0:
        status = writable(call, section)
        if status != DONE:
            return status
        memcpy(own, source, section.nbytes)
        post(call, section, STEP_DATA)
        source = own
    if v != 0:
        deliver(call, section.offset, source, section.nbytes)
    return DONE


cdef int bcast_scatter_allgather(Call *call, bint pipelined, size_t section_bytes) noexcept nogil:
    """Each rank copies a slice from the root, then all slices from each other.

    So the root's memory is read once, not once for each rank (Thakur, Rabenseifner & Gropp 2005).
    """
    plan_call(call, 2, section_bytes, pipelined, False)
    call.phase[0] = take_slice
    call.phase[1] = gather_slices
    return complete(call)


cdef int take_slice(Call *call, Section *section) noexcept nogil:
    """The root posts the data, its own slice with them; each rank copies its slice for the others.
    """
    cdef int rank = call.team.rank, status
    cdef size_t begin = cut(section.nbytes, 1, call.team.size, rank)
    cdef size_t end = cut(section.nbytes, 1, call.team.size, rank + 1)
    if rank != call.root:
        status = heard(call, section, call.root, STEP_DATA)
        if status != DONE:
            return status
    status = writable(call, section)
    if status != DONE:
        return status
    if rank == call.root:
        memcpy(region(call, section, rank), call.send + section.offset, section.nbytes)
    else:
        memcpy(region(call, section, rank) + begin, region(call, section, call.root) + begin,
               end - begin)
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
        deliver(call, section.offset + begin, region(call, section, owner) + begin, end - begin)
        section.progress += 1
    return DONE
