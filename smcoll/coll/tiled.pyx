"""The tiled reduction of LHS 2.4, staged: each rank reduces one slice of all vectors.

The naive form reduces all vectors at once, in rank order. The cyclic form (Mamidala et al. 2008,
LHS 3.2) takes them one after the other, beginning with the next rank's: at any time all ranks read
from different ones.
"""

from smcoll.base.kernels cimport reduce_operands, strip_bytes
from smcoll.coll.pipeline cimport (
    ALL_STORE, STEP_IN, STEP_RESULT, complete, cut, deliver, heard, heard_all, plan_call, post, put,
    reduce_for_all, reduce_from, reduce_into, reduce_operands_into, region, stores_of_others, tile,
    writable,
)
from smcoll.sync.team cimport DONE, next_rank


def bounds(size_t nbytes, size_t element_size, int parts, int part):
    """(begin, end) of part ``part`` of ``parts`` of a vector, in bytes."""
    if not (0 <= part < parts and element_size > 0):
        raise ValueError(f"no part {part} of {parts}")
    return (cut(nbytes, element_size, parts, part), cut(nbytes, element_size, parts, part + 1))


# ---------------------------------------------------------------------- Allreduce and Reduce

cdef int allreduce_tiled(Call *call) noexcept nogil:
    """Every rank reduces its slice of all sources at once, then copies the others' slices.

    LHS 2.4's naive tiled reduction followed by an allgather, with the vectors staged through the
    data regions; a rank never copies in the slice that it reduces itself.
    """
    plan_call(call, 3, call.plan.section_bytes, ALL_STORE)
    call.phase[0] = copy_in_but_own_slice
    call.phase[1] = reduce_own_slice_for_all
    call.phase[2] = copy_out_others
    return complete(call)


cdef api int allreduce_tiled_cyclic(Call *call) noexcept nogil:
    """The same, each rank reading the others one after the other (LHS 3.2, after Mamidala)."""
    plan_call(call, 3, call.plan.section_bytes, ALL_STORE)
    call.phase[0] = copy_in_but_own_slice
    call.phase[1] = reduce_cyclically_for_all
    call.phase[2] = copy_out_others
    return complete(call)


cdef int reduce_tiled(Call *call) noexcept nogil:
    """Every rank reduces its slice of all sources at once (LHS 2.4); the root gathers them."""
    plan_call(call, 3, call.plan.section_bytes, ALL_STORE)
    call.phase[0] = copy_in_but_own_slice
    call.phase[1] = reduce_own_slice_for_root
    call.phase[2] = copy_out_at_root
    return complete(call)


cdef api int reduce_tiled_cyclic(Call *call) noexcept nogil:
    """The same, each rank reading the others one after the other (LHS 3.2, after Mamidala)."""
    plan_call(call, 3, call.plan.section_bytes, ALL_STORE)
    call.phase[0] = copy_in_but_own_slice
    call.phase[1] = reduce_cyclically_for_root
    call.phase[2] = copy_out_at_root
    return complete(call)


# ---------------------------------------------------------------------- their phases

cdef int copy_in_but_own_slice(Call *call, Section *section) noexcept nogil:
    """Copy the vector without our slice into our region: our slice is reduced by us alone."""
    cdef int rank = call.team.rank, status = writable(call, section)
    cdef size_t begin, end
    cdef char *own = region(call, section, rank)
    cdef const char *user = call.send + section.offset
    if status != DONE:
        return status
    begin = tile(call, section, rank)
    end = tile(call, section, rank + 1)
    put(call, section, own, user, begin)
    put(call, section, own + end, user + end, section.nbytes - end)
    post(call, section, STEP_IN)
    return DONE


cdef inline void take_operands(Call *call, Section *section, size_t begin) noexcept nogil:
    """All vectors from ``begin`` on, in rank order."""
    cdef int rank
    for rank in range(call.team.size):
        call.sources[rank] = region(call, section, rank) + begin
    call.sources[call.team.rank] = call.send + section.offset + begin


cdef inline void reduce_slice_around_caches(Call *call, Section *section, size_t begin,
                                            size_t end) noexcept nogil:
    """To the own region, and from there, strip by strip, to the user."""
    cdef size_t strip, longest = strip_bytes(call.operation, end - begin, call.element_size)
    cdef char *own = region(call, section, call.team.rank)
    while begin < end:
        strip = min(begin + longest, end)
        take_operands(call, section, begin)
        reduce_into(call, section, own + begin, call.team.size, strip - begin)
        deliver(call, section, call.team.rank, section.offset + begin, own + begin, strip - begin)
        begin = strip


cdef int reduce_own_slice_for_all(Call *call, Section *section) noexcept nogil:
    """The own slice of all sources at once; into the own region for the others to read."""
    cdef int rank = call.team.rank, status = heard_all(call, section, STEP_IN)
    cdef size_t begin, end
    if status != DONE:
        return status
    begin = tile(call, section, rank)
    end = tile(call, section, rank + 1)
    if call.streaming:
        reduce_slice_around_caches(call, section, begin, end)
    else:
        take_operands(call, section, begin)
        reduce_for_all(call, section, call.recv + section.offset + begin,
                       region(call, section, rank) + begin, call.team.size, end - begin)
    post(call, section, STEP_RESULT)
    return DONE


cdef int reduce_own_slice_for_root(Call *call, Section *section) noexcept nogil:
    """The same where only the root wants the result; its own slice goes straight to the user."""
    cdef int rank = call.team.rank, status = heard_all(call, section, STEP_IN)
    cdef size_t begin, end
    if status != DONE:
        return status
    begin = tile(call, section, rank)
    end = tile(call, section, rank + 1)
    take_operands(call, section, begin)
    if rank == call.root:
        reduce_from(call, section, stores_of_others(call, section),
                    call.recv + section.offset + begin, call.team.size, end - begin)
    else:
        reduce_into(call, section, region(call, section, rank) + begin, call.team.size,
                    end - begin)
        post(call, section, STEP_RESULT)
    return DONE


cdef int reduce_cyclically(Call *call, Section *section, char *out, bint to_region, size_t begin,
                           size_t end) noexcept nogil:
    """The own slice of one rank after the other, as they come in, onto the own data.

    ``to_region``: ``out`` is in the own region, and others will read the result there.
    """
    cdef bint last
    cdef const void *operands[2]
    cdef int other, status
    if call.team.size == 1:
        # Alone on its node, in a call over several.
        operands[0] = call.send + section.offset + begin
        reduce_operands(call.operation, out, operands, 1, (end - begin) // call.element_size)
    while section.progress < call.team.size - 1:
        other = next_rank(call.team, section.progress + 1)
        status = heard(call, section, other, STEP_IN)
        if status != DONE:
            return status
        operands[0] = call.send + section.offset + begin if section.progress == 0 else out
        operands[1] = region(call, section, other) + begin
        last = section.progress == call.team.size - 2
        if to_region and last:
            reduce_operands_into(call, section, out, operands, 2, end - begin)
        else:
            reduce_operands(call.operation, out, operands, 2, (end - begin) // call.element_size)
        section.progress += 1
    return DONE


cdef int reduce_cyclically_for_all(Call *call, Section *section) noexcept nogil:
    """Into the own region for the others to read, then to the user."""
    cdef int rank = call.team.rank, status
    cdef size_t begin = tile(call, section, rank), end = tile(call, section, rank + 1)
    cdef char *own = region(call, section, rank)
    status = reduce_cyclically(call, section, own + begin, True, begin, end)
    if status != DONE:
        return status
    post(call, section, STEP_RESULT)
    deliver(call, section, rank, section.offset + begin, own + begin, end - begin)
    return DONE


cdef int reduce_cyclically_for_root(Call *call, Section *section) noexcept nogil:
    """The same where only the root wants the result; its own slice goes straight to the user."""
    cdef int rank = call.team.rank, status
    cdef size_t begin = tile(call, section, rank), end = tile(call, section, rank + 1)
    if rank == call.root:
        return reduce_cyclically(call, section, call.recv + section.offset + begin, False, begin,
                                 end)
    status = reduce_cyclically(call, section, region(call, section, rank) + begin, True, begin,
                               end)
    if status == DONE:
        post(call, section, STEP_RESULT)
    return status


cdef int copy_out_others(Call *call, Section *section) noexcept nogil:
    """Copy the other ranks' slices of the result."""
    cdef int owner, status
    cdef size_t begin, end
    while section.progress < call.team.size - 1:
        owner = next_rank(call.team, section.progress + 1)
        status = heard(call, section, owner, STEP_RESULT)
        if status != DONE:
            return status
        begin = tile(call, section, owner)
        end = tile(call, section, owner + 1)
        deliver(call, section, owner, section.offset + begin,
                region(call, section, owner) + begin, end - begin)
        section.progress += 1
    return DONE


cdef int copy_out_at_root(Call *call, Section *section) noexcept nogil:
    if call.team.rank != call.root:
        return DONE
    return copy_out_others(call, section)
