"""Broadcast through the data regions."""

from libc.string cimport memcpy

from smcoll.barrier cimport DONE
from smcoll.pipeline cimport (
    Call, Section, complete, deliver, heard, plan_call, post, region, writable,
)
from smcoll.trees cimport to_real, to_virtual

cdef enum:
    STEP_DATA = 1


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
