"""All-read Allreduce: every rank reads everybody's vector and reduces all of them itself."""

from smcoll.barrier cimport line_in_exchange, post_line, wait_line
from smcoll.base.kernels cimport copy_bytes, reduce_operands
from smcoll.coll.pipeline cimport (
    ALL_STORE, STEP_IN, Call, Section, complete, copy_in, heard_all, plan_call, reduce_from, region,
    stores_of_others,
)
from smcoll.segment cimport Line
from smcoll.sync.team cimport DONE, Team, next_rank

cdef int allreduce_all_read(Call *call) noexcept nogil:
    """Every rank posts its vector and reduces all of them itself: one dependent step."""
    plan_call(call, 2, call.plan.section_bytes, ALL_STORE)
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
    reduce_from(call, section, stores_of_others(call, section),
                call.recv + section.offset, call.team.size, section.nbytes)
    return DONE


cdef int allreduce_all_read_inline(Call *call) noexcept nogil:
    """All-read exchange: publish your vector, read everybody's, reduce in rank order.

    One dependent step; every rank reduces in the same order, so all get the same bits (protocol
    rule 7). ``send`` and ``recv`` may be the same.
    """
    cdef Team *team = call.team
    cdef int i, rank, status
    cdef Line *line
    team.exchanges += 1
    line = line_in_exchange(team, team.rank)
    copy_bytes(line.payload, call.send, call.nbytes)
    post_line(team, line, team.exchanges)
    # The user's operand, not its copy in our line: to load what was just stored waits until the
    # store has got its cache line back from the rank that read it last.
    call.sources[team.rank] = call.send
    for i in range(1, team.size):
        rank = next_rank(team, i)
        line = line_in_exchange(team, rank)
        status = wait_line(team, line, team.exchanges, rank)
        if status != DONE:
            return status
        call.sources[rank] = line.payload
    reduce_operands(call.operation, call.recv, call.sources, team.size, call.elements)
    return DONE
