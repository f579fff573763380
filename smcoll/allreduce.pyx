"""Allreduce through the data regions: GS 3.1's three algorithms, all-read and tiled."""

from libc.string cimport memcpy

from smcoll.kernels cimport reduce_operands
from smcoll.pairwise cimport (
    STEP_FOLDED, STEP_IN, STEP_READY, copy_in, halve, power_of_two, slice_of, steps_of,
)
from smcoll.pipeline cimport (
    Call, Section, complete, deliver, heard, heard_all, plan_call, post, region, writable,
)
from smcoll.team cimport DONE
from smcoll.tiled cimport (
    copy_in_others, copy_out_others, reduce_cyclically_for_all, reduce_own_slice_for_all,
)

cdef enum:
    STEP_PARTIAL = 1           # fan-in: our subtree is reduced
    STEP_RESULT = 2            # fan-out: the result is there


# ---------------------------------------------------------------------------------- all-read

cdef int allreduce_all_read(Call *call, bint pipelined, size_t section_bytes) noexcept nogil:
    """Every rank posts its vector and reduces all of them itself: one dependent step."""
    plan_call(call, 2, section_bytes, pipelined, False)
    call.phase[0] = copy_in
    call.phase[1] = reduce_everything
    return complete(call)


cdef int reduce_everything(Call *call, Section *section) noexcept nogil:
    cdef int rank, status = heard_all(call, section, STEP_IN)
    if status != DONE:
        return status
    for rank in range(call.team.size):
        call.sources[rank] = region(call, section, rank)
    call.sources[call.team.rank] = call.send + section.offset
    reduce_operands(call.operation, call.recv + section.offset, call.sources, call.team.size,
                    section.elements)
    return DONE


# ---------------------------------------------------------------------------------- fan-in/fan-out

cdef int allreduce_fan_in_fan_out(Call *call, bint pipelined, size_t section_bytes) noexcept nogil:
    """Fan-in of radix n to rank 0, fan-out of radix m from it (GS 3.1), a new segment a section."""
    plan_call(call, 2, section_bytes, pipelined, False)
    call.phase[0] = fan_in
    call.phase[1] = fan_out
    return complete(call)


cdef int fan_in(Call *call, Section *section) noexcept nogil:
    """A parent reduces its n children's data onto its own; the root then has the result."""
    cdef int rank = call.team.rank
    cdef int children = call.fan_in.children[rank], child, status
    cdef char *own = region(call, section, rank)
    call.sources[0] = call.send + section.offset
    while section.progress < children:
        child = call.fan_in.first_child[rank] + section.progress
        status = heard(call, section, child, STEP_PARTIAL)
        if status != DONE:
            return status
        section.progress += 1
        call.sources[section.progress] = region(call, section, child)
    status = writable(call, section)
    if status != DONE:
        return status
    reduce_operands(call.operation, own, call.sources, 1 + children, section.elements)
    post(call, section, STEP_RESULT if rank == 0 else STEP_PARTIAL)
    return DONE


cdef int fan_out(Call *call, Section *section) noexcept nogil:
    """A child copies its parent's result.

    One with children passes it on through its own region: its fan-in parent has read the partial
    result there, for that is part of the result that has arrived.
    """
    cdef int rank = call.team.rank, parent = call.fan_out.parent[rank], status
    cdef char *own = region(call, section, rank)
    cdef const char *source = own
    if rank != 0:
        status = heard(call, section, parent, STEP_RESULT)
        if status != DONE:
            return status
        source = region(call, section, parent)
        if call.fan_out.children[rank] > 0:
            memcpy(own, source, section.nbytes)
            post(call, section, STEP_RESULT)
            source = own
    deliver(call, section.offset, source, section.nbytes)
    return DONE


# ---------------------------------------------------------------------------------- pairwise

cdef int allreduce_recursive_doubling(Call *call, bint pipelined,
                                      size_t section_bytes) noexcept nogil:
    """Recursive doubling with a read and a write half (GS 3.1); a section fills half a region."""
    plan_call(call, 3, section_bytes // 2, pipelined, True)
    call.phase[0] = copy_in
    call.phase[1] = double
    call.phase[2] = copy_doubled
    return complete(call)


# Where `rank`'s operand for `step` lies: halves alternate; ranks that were folded are one ahead.
cdef inline char *operand(Call *call, Section *section, int rank, int step) noexcept nogil:
    cdef int ranks = call.team.size
    cdef int half = (step + (1 if rank < ranks - power_of_two(ranks) else 0)) & 1
    return region(call, section, rank) + half * (call.team.layout.segment_size // 2)


cdef inline void reduce_pair(Call *call, char *out, const char *left, const char *right,
                             size_t begin, size_t end) noexcept nogil:
    cdef const void *operands[2]
    operands[0] = left + begin * call.element_size
    operands[1] = right + begin * call.element_size
    reduce_operands(call.operation, out + begin * call.element_size, operands, 2, end - begin)


cdef int fold_into_other_half(Call *call, Section *section) noexcept nogil:
    """Ranks K and N + K reduce half of the data each; K copies the other half."""
    cdef int rank = call.team.rank
    cdef int n = power_of_two(call.team.size)
    cdef int partner = rank + n if rank < n else rank - n
    cdef size_t other_half = call.team.layout.segment_size // 2
    cdef size_t middle = section.elements // 2
    cdef char *own = region(call, section, rank)
    cdef char *other = region(call, section, partner)
    cdef int status
    if section.progress == 0:
        status = heard(call, section, partner, STEP_IN)
        if status != DONE:
            return status
        if rank < n:
            reduce_pair(call, own + other_half, own, other, 0, middle)
        else:
            reduce_pair(call, own + other_half, other, own, middle, section.elements)
        post(call, section, STEP_FOLDED)
        section.progress = 1
    if rank < n:
        status = heard(call, section, partner, STEP_FOLDED)
        if status != DONE:
            return status
        middle *= call.element_size
        memcpy(own + other_half + middle, other + other_half + middle, section.nbytes - middle)
    return DONE


cdef int double(Call *call, Section *section) noexcept nogil:
    """log2 N steps: both partners read both operands and write the result to their other half.

    The half that step s writes was read, as operand of step s - 1, by that step's partner; it has
    read it when it is ready for step s itself.
    """
    cdef int rank = call.team.rank, ranks = call.team.size
    cdef int n = power_of_two(ranks), steps = steps_of(ranks)
    cdef int status, step, partner
    cdef const char *own
    cdef const char *other
    if section.progress < 2:
        if rank < ranks - n or rank >= n:
            status = fold_into_other_half(call, section)
            if status != DONE:
                return status
        section.progress = 2
        if rank < n:
            post(call, section, STEP_READY)
    if rank >= n:
        return DONE
    while section.progress - 2 < steps:
        step = section.progress - 2
        partner = rank ^ (1 << step)
        status = heard(call, section, partner, STEP_READY + step)
        if status == DONE and step > 0:
            status = heard(call, section, rank ^ (1 << (step - 1)), STEP_READY + step)
        if status != DONE:
            return status
        own = operand(call, section, rank, step)
        other = operand(call, section, partner, step)
        # The lower rank's operand stands left on both partners (DESIGN rule 7).
        if rank < partner:
            reduce_pair(call, operand(call, section, rank, step + 1), own, other, 0,
                        section.elements)
        else:
            reduce_pair(call, operand(call, section, rank, step + 1), other, own, 0,
                        section.elements)
        section.progress += 1
        post(call, section, STEP_READY + step + 1)
    return DONE


cdef int copy_doubled(Call *call, Section *section) noexcept nogil:
    """Ranks N and higher copy the result of their partner, directly into the user's buffer."""
    cdef int rank = call.team.rank, ranks = call.team.size
    cdef int n = power_of_two(ranks), steps = steps_of(ranks), owner = rank, status
    if rank >= n:
        owner = rank - n
        status = heard(call, section, owner, STEP_READY + steps)
        if status != DONE:
            return status
    deliver(call, section.offset, operand(call, section, owner, steps), section.nbytes)
    return DONE


cdef int allreduce_recursive_halving(Call *call, bint pipelined,
                                     size_t section_bytes) noexcept nogil:
    """Pairwise reduce-scatter, then everybody reads the slices from their owners (GS 3.1)."""
    plan_call(call, 3, section_bytes, pipelined, True)
    call.phase[0] = copy_in
    call.phase[1] = halve
    call.phase[2] = gather_slices
    return complete(call)


cdef int gather_slices(Call *call, Section *section) noexcept nogil:
    cdef int ranks = call.team.size, owner, status
    cdef int n = power_of_two(ranks)
    cdef size_t begin, end
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


# ---------------------------------------------------------------------------------- tiled

cdef int allreduce_tiled(Call *call, bint pipelined, size_t section_bytes) noexcept nogil:
    """Every rank reduces its slice of all sources at once, then copies the others' slices.

    LHS 2.4's naive tiled reduction followed by an allgather, with the vectors staged through the
    data regions; a rank never copies in the slice that it reduces itself.
    """
    plan_call(call, 3, section_bytes, pipelined, False)
    call.phase[0] = copy_in_others
    call.phase[1] = reduce_own_slice_for_all
    call.phase[2] = copy_out_others
    return complete(call)


cdef int allreduce_tiled_cyclic(Call *call, bint pipelined, size_t section_bytes) noexcept nogil:
    """The same, each rank reading the others one after the other (LHS 3.2, after Mamidala)."""
    plan_call(call, 3, section_bytes, pipelined, False)
    call.phase[0] = copy_in_others
    call.phase[1] = reduce_cyclically_for_all
    call.phase[2] = copy_out_others
    return complete(call)
