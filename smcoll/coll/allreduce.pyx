"""Allreduce: all-read, pairwise (GS 3.1) and tiled. Along trees: ``tree``."""

from smcoll.barrier cimport publish, wait_line
from smcoll.base.kernels cimport copy_bytes, reduce_operands
from smcoll.coll.pairwise cimport (
    STEP_READY, gather_slices, halve, pair_off, power_of_two, steps_of,
)
from smcoll.coll.pipeline cimport (
    STEP_IN, Call, Section, combine, complete, copy_in, deliver, half_of_region, heard, heard_all,
    occupy_two_halves, plan_call, post, reduce_from, region, stores_of_others,
)
from smcoll.coll.tiled cimport (
    copy_in_others, copy_out_others, reduce_cyclically_for_all, reduce_own_slice_for_all,
)
from smcoll.segment cimport Line, exchange_line
from smcoll.sync.team cimport DONE, Team, next_rank


# ---------------------------------------------------------------------------------- all-read

cdef int allreduce_all_read(Call *call) noexcept nogil:
    """Every rank posts its vector and reduces all of them itself: one dependent step."""
    plan_call(call, 2, call.plan.section_bytes, False)
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
    reduce_from(call, stores_of_others(call, section), call.recv + section.offset, call.team.size,
                section.nbytes)
    return DONE


cdef int allreduce_all_read_inline(Call *call) noexcept nogil:
    """All-read exchange: publish your vector, read everybody's, reduce in rank order.

    One dependent step; every rank reduces in the same order, so all get the same bits (protocol
    rule 7). ``send`` and ``recv`` may be the same.
    """
    cdef Team *team = call.team
    cdef int parity, i, rank, status
    cdef Line *line
    team.exchanges += 1
    parity = <int> (team.exchanges & 1)
    line = exchange_line(&team.layout, team.base, team.rank, parity)
    copy_bytes(line.payload, call.send, call.nbytes)
    publish(team, line, team.exchanges)
    # The user's operand, not its copy in our line: to load what was just stored waits until the
    # store has got its cache line back from the rank that read it last.
    call.sources[team.rank] = call.send
    for i in range(1, team.size):
        rank = next_rank(team, i)
        line = exchange_line(&team.layout, team.base, rank, parity)
        status = wait_line(team, line, team.exchanges, rank)
        if status != DONE:
            return status
        call.sources[rank] = line.payload
    reduce_operands(call.operation, call.recv, call.sources, team.size, call.elements)
    return DONE


# ---------------------------------------------------------------------------------- pairwise

cdef int allreduce_recursive_doubling(Call *call) noexcept nogil:
    """Recursive doubling with a read and a write half (GS 3.1); a section fills half a region."""
    plan_call(call, 3, call.plan.section_bytes // 2, True)
    occupy_two_halves(call)
    call.phase[0] = copy_in
    call.phase[1] = double
    call.phase[2] = copy_doubled
    return complete(call)


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


cdef int allreduce_recursive_halving(Call *call) noexcept nogil:
    """Pairwise reduce-scatter, then everybody reads the slices from their owners (GS 3.1)."""
    plan_call(call, 3, call.plan.section_bytes, True)
    call.phase[0] = copy_in
    call.phase[1] = halve
    call.phase[2] = gather_slices
    return complete(call)


# ---------------------------------------------------------------------------------- tiled

cdef int allreduce_tiled(Call *call) noexcept nogil:
    """Every rank reduces its slice of all sources at once, then copies the others' slices.

    LHS 2.4's naive tiled reduction followed by an allgather, with the vectors staged through the
    data regions; a rank never copies in the slice that it reduces itself.
    """
    plan_call(call, 3, call.plan.section_bytes, False)
    call.phase[0] = copy_in_others
    call.phase[1] = reduce_own_slice_for_all
    call.phase[2] = copy_out_others
    return complete(call)


cdef int allreduce_tiled_cyclic(Call *call) noexcept nogil:
    """The same, each rank reading the others one after the other (LHS 3.2, after Mamidala)."""
    plan_call(call, 3, call.plan.section_bytes, False)
    call.phase[0] = copy_in_others
    call.phase[1] = reduce_cyclically_for_all
    call.phase[2] = copy_out_others
    return complete(call)
