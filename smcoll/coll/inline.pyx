"""Small messages: the data travel in the flag's own cache lines, straight code, no sections.

Two kinds of slots (docs/protocol.md, rule 11). Synchronising exchanges, in which everybody reads
everybody, alternate between two slots by the count of such exchanges: who writes exchange e + 2 has
seen all ranks in e + 1, hence through with e. Rooted calls prove no such thing (a root of Bcast may
run ahead), so they have a ring of slots of their own, recycled by a nonblocking barrier per bank.
"""

from smcoll.barrier cimport publish, wait_line
from smcoll.kernels.kernels cimport copy_bytes, reduce_operands
from smcoll.segment cimport Line, exchange_line
from smcoll.sync.team cimport DONE, Team, next_rank


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
    call.sources[team.rank] = line.payload
    for i in range(1, team.size):
        rank = next_rank(team, i)
        line = exchange_line(&team.layout, team.base, rank, parity)
        status = wait_line(team, line, team.exchanges, rank)
        if status != DONE:
            return status
        call.sources[rank] = line.payload
    reduce_operands(call.operation, call.recv, call.sources, team.size, call.elements)
    return DONE
