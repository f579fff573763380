"""Reduce through the data regions (GS 3.2)."""

from smcoll.kernels cimport reduce_operands
from smcoll.pairwise cimport STEP_READY, copy_in, halve, power_of_two, slice_of, steps_of
from smcoll.pipeline cimport (
    Call, Section, complete, deliver, heard, plan_call, post, region, writable,
)
from smcoll.team cimport DONE
from smcoll.tiled cimport (
    copy_in_others, copy_out_at_root, reduce_cyclically_for_root, reduce_own_slice_for_root,
)
from smcoll.trees cimport to_real, to_virtual

cdef enum:
    STEP_PARTIAL = 1


cdef int reduce_fan_in(Call *call, bint pipelined, size_t section_bytes) noexcept nogil:
    """Fan-in tree of radix n, a new segment for each section."""
    plan_call(call, 1, section_bytes, pipelined, False)
    call.phase[0] = fan_in_section
    return complete(call)


cdef int fan_in_section(Call *call, Section *section) noexcept nogil:
    """A parent reduces the data of its n children onto its own; the root's go to the user."""
    cdef int ranks = call.team.size, rank = call.team.rank
    cdef int v = to_virtual(rank, call.root, ranks)
    cdef int children = call.fan_in.children[v], child, status
    cdef const char *user = call.send + section.offset
    call.sources[0] = user
    while section.progress < children:
        child = to_real(call.fan_in.first_child[v] + section.progress, call.root, ranks)
        status = heard(call, section, child, STEP_PARTIAL)
        if status != DONE:
            return status
        section.progress += 1
        call.sources[section.progress] = region(call, section, child)
    if v == 0:
        reduce_operands(call.operation, call.recv + section.offset, call.sources, 1 + children,
                        section.elements)
        return DONE
    status = writable(call, section)
    if status != DONE:
        return status
    reduce_operands(call.operation, region(call, section, rank), call.sources, 1 + children,
                    section.elements)
    post(call, section, STEP_PARTIAL)
    return DONE


cdef int reduce_scatter_gather(Call *call, bint pipelined, size_t section_bytes) noexcept nogil:
    """Pairwise reduce-scatter, then the root gathers the slices from their owners."""
    plan_call(call, 3, section_bytes, pipelined, True)
    call.phase[0] = copy_in
    call.phase[1] = halve
    call.phase[2] = gather_to_root
    return complete(call)


cdef int gather_to_root(Call *call, Section *section) noexcept nogil:
    cdef int ranks = call.team.size, owner, status
    cdef int n = power_of_two(ranks)
    cdef size_t begin, end
    if call.team.rank != call.root:
        return DONE
    while section.progress < n:
        owner = (call.team.rank + section.progress) & (n - 1)
        status = heard(call, section, owner, STEP_READY + steps_of(ranks))
        if status != DONE:
            return status
        slice_of(owner, ranks, section.elements, &begin, &end)
        begin *= call.element_size
        end *= call.element_size
        deliver(call, section.offset + begin, region(call, section, owner) + begin, end - begin)
        section.progress += 1
    return DONE


cdef int reduce_tiled(Call *call, bint pipelined, size_t section_bytes) noexcept nogil:
    """Every rank reduces its slice of all sources at once (LHS 2.4); the root gathers them."""
    plan_call(call, 3, section_bytes, pipelined, False)
    call.phase[0] = copy_in_others
    call.phase[1] = reduce_own_slice_for_root
    call.phase[2] = copy_out_at_root
    return complete(call)


cdef int reduce_tiled_cyclic(Call *call, bint pipelined, size_t section_bytes) noexcept nogil:
    """The same, each rank reading the others one after the other (LHS 3.2, after Mamidala)."""
    plan_call(call, 3, section_bytes, pipelined, False)
    call.phase[0] = copy_in_others
    call.phase[1] = reduce_cyclically_for_root
    call.phase[2] = copy_out_at_root
    return complete(call)
