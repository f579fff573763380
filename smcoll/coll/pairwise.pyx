"""Recursive doubling and halving between pairs of ranks (GS 3.1 and 3.2): Allreduce and Reduce.

For M ranks, N the largest power of two not above M: rank N + K is paired with rank K, for K up to
M - N - 1 (the paper prints M - N, one pair too many). A pair first folds: each reduces half of the
data, the lower one copies the other half from the higher; then the ranks below N go on.
"""

from smcoll.coll.pipeline cimport (
    ALL_STORE, ONE_SEGMENT, STEP_IN, Call, Section, combine, complete, copy_in, deliver,
    half_of_region, heard, occupy_two_halves, plan_call, post, put, region,
)
from smcoll.sync.team cimport DONE

cdef enum:
    # From STEP_IN on.
    STEP_FOLDED = 2            # own half of a folded pair is reduced
    STEP_READY = 3             # + s: ready for step s of the power-of-two part


# Largest power of two not above `ranks`, and its logarithm.
cdef inline int power_of_two(int ranks) noexcept nogil:
    cdef int n = 1
    while 2 * n <= ranks:
        n *= 2
    return n


cdef inline int steps_of(int ranks) noexcept nogil:
    cdef int n = 1, steps = 0
    while 2 * n <= ranks:
        n *= 2
        steps += 1
    return steps


# ---------------------------------------------------------------------- Allreduce and Reduce

cdef api int allreduce_recursive_doubling(Call *call) noexcept nogil:
    """Recursive doubling with a read and a write half (GS 3.1); a section fills half a region."""
    plan_call(call, 3, call.plan.section_bytes // 2, ALL_STORE | ONE_SEGMENT)
    occupy_two_halves(call)
    call.phase[0] = copy_in
    call.phase[1] = double
    call.phase[2] = copy_doubled
    return complete(call)


cdef api int allreduce_recursive_halving(Call *call) noexcept nogil:
    """Pairwise reduce-scatter, then everybody reads the slices from their owners (GS 3.1)."""
    plan_call(call, 3, call.plan.section_bytes, ALL_STORE | ONE_SEGMENT)
    call.phase[0] = copy_in
    call.phase[1] = halve
    call.phase[2] = gather_slices
    return complete(call)


cdef api int reduce_scatter_gather(Call *call) noexcept nogil:
    """Pairwise reduce-scatter, then the root gathers the slices from their owners."""
    plan_call(call, 3, call.plan.section_bytes, ALL_STORE | ONE_SEGMENT)
    call.phase[0] = copy_in
    call.phase[1] = halve
    call.phase[2] = gather_to_root
    return complete(call)


cdef int gather_to_root(Call *call, Section *section) noexcept nogil:
    return gather_slices(call, section) if call.team.rank == call.root else DONE


# ---------------------------------------------------------------------- doubling

# Where `rank`'s operand for `step` lies: halves alternate; ranks that were folded are one ahead.
cdef inline char *operand(Call *call, Section *section, int rank, int step) noexcept nogil:
    cdef int ranks = call.team.size
    cdef int half = (step + (1 if rank < ranks - power_of_two(ranks) else 0)) & 1
    return half_of_region(call, section, rank, half)


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
    status = pair_off(call, section, call.extent // 2)
    if status != DONE or rank >= n:
        return status
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
        # The lower rank's operand stands left on both partners (protocol rule 7).
        if rank < partner:
            combine(call, section, operand(call, section, rank, step + 1), own, other, 0,
                    section.elements)
        else:
            combine(call, section, operand(call, section, rank, step + 1), other, own, 0,
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
    deliver(call, section, owner, section.offset, operand(call, section, owner, steps),
            section.nbytes)
    return DONE


# ---------------------------------------------------------------------- halving

cdef void slice_of(int rank, int ranks, size_t elements, size_t *begin,
                   size_t *end) noexcept nogil:
    """The slice that ``rank`` (below N) owns after all halving steps, in elements."""
    cdef int distance = power_of_two(ranks) // 2
    begin[0] = 0
    end[0] = elements
    while distance > 0:
        keep_half(rank, distance, begin, end)
        distance //= 2


cdef inline void keep_half(int rank, int distance, size_t *begin, size_t *end) noexcept nogil:
    cdef size_t middle = begin[0] + (end[0] - begin[0]) // 2
    if rank & distance:
        begin[0] = middle
    else:
        end[0] = middle


cdef int fold(Call *call, Section *section, size_t result) noexcept nogil:
    """A pair of ranks K and N + K: each reduces half of the data; K gets both halves.

    ``result``: how far behind the operands it lies in the region; 0: in their place.
    """
    cdef int rank = call.team.rank
    cdef int n = power_of_two(call.team.size)
    cdef int partner = rank + n if rank < n else rank - n
    cdef size_t half = section.elements // 2
    cdef char *own = region(call, section, rank)
    cdef char *other = region(call, section, partner)
    cdef int status
    if section.progress == 0:
        status = heard(call, section, partner, STEP_IN)
        if status != DONE:
            return status
        # The partner reads our other half only, so reducing in place is safe.
        if rank < n:
            combine(call, section, own + result, own, other, 0, half)
        else:
            combine(call, section, own + result, other, own, half, section.elements)
        post(call, section, STEP_FOLDED)
        section.progress = 1
    if rank < n:
        status = heard(call, section, partner, STEP_FOLDED)
        if status != DONE:
            return status
        half *= call.element_size
        put(call, section, own + result + half, other + result + half, section.nbytes - half)
    return DONE


cdef int pair_off(Call *call, Section *section, size_t result) noexcept nogil:
    """Ranks N and higher, and their partners, fold; then the ranks below N begin their steps."""
    cdef int rank = call.team.rank, ranks = call.team.size
    cdef int n = power_of_two(ranks), status
    if section.progress >= 2:
        return DONE
    if rank < ranks - n or rank >= n:
        status = fold(call, section, result)
        if status != DONE:
            return status
    section.progress = 2
    if rank < n:
        post(call, section, STEP_READY)
    return DONE


cdef int halve(Call *call, Section *section) noexcept nogil:
    """Fold, then log2 N steps: in each, the pair splits what it holds and each reduces its part.

    Both partners write only the part that they keep and the other does not read; what a later
    partner reads was finished in an earlier step. So one region serves all steps.
    """
    cdef int rank = call.team.rank, ranks = call.team.size
    cdef int n = power_of_two(ranks), steps = steps_of(ranks)
    cdef int status, step, partner, distance, earlier
    cdef size_t begin, end
    cdef char *own = region(call, section, rank)
    cdef char *other
    status = pair_off(call, section, 0)
    if status != DONE or rank >= n:
        return status
    while section.progress - 2 < steps:
        step = section.progress - 2
        distance = n >> (step + 1)
        partner = rank ^ distance
        status = heard(call, section, partner, STEP_READY + step)
        if status != DONE:
            return status
        begin = 0
        end = section.elements
        earlier = n // 2
        while earlier >= distance:
            keep_half(rank, earlier, &begin, &end)
            earlier //= 2
        other = region(call, section, partner)
        # The lower rank's operand stands left on both partners (protocol rule 7).
        if rank < partner:
            combine(call, section, own, own, other, begin, end)
        else:
            combine(call, section, own, other, own, begin, end)
        section.progress += 1
        post(call, section, STEP_READY + step + 1)
    return DONE


cdef int gather_slices(Call *call, Section *section) noexcept nogil:
    """Every slice from its owner to the user, once all halves are reduced."""
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
        deliver(call, section, owner, section.offset + begin,
                region(call, section, owner) + begin, end - begin)
        section.progress += 1
    return DONE
