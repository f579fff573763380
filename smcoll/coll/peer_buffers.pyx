"""Where ranks keep their buffers: published by the owner, checked by who reads or writes there.

An offset in the owner's heap, or STAGED: then its data go through its region as ever. Which of the
two is the owner's business (protocol rule 3). A rank may also say STAGED_BY_ALL; since every rank
reads what every rank has published, all know it before they use any buffer.
"""

from libc.string cimport memcpy

from smcoll.barrier cimport (
    barrier_all_read, line_in_exchange, post_line_length, wait_line, wait_line_with_length,
)
from smcoll.base.atomics cimport fence_acquire, load_acquire, load_relaxed
from smcoll.memory.heap cimport STAGED, STAGED_BY_ALL, heap_address, heap_offset
from smcoll.segment cimport status_of
from smcoll.sync.team cimport DONE, FAILED_DAMAGED, FAILED_POISONED, next_rank


cdef uint64_t own_offset(const Team *team, const void *address, size_t nbytes) noexcept nogil:
    """What to publish for a buffer of this rank's."""
    if team.heaps == NULL:
        return STAGED
    return heap_offset(&team.heaps[team.rank], address, nbytes)


cdef int find(Team *team, int rank, uint64_t offset, size_t nbytes, char **address) noexcept nogil:
    """The address here of what ``rank`` published: NULL where it is staged. DONE, or
    FAILED_DAMAGED where it can't lie there."""
    address[0] = NULL
    if offset == STAGED:
        return DONE
    if team.heaps != NULL:
        address[0] = heap_address(&team.heaps[rank], offset, nbytes)
    if address[0] != NULL:
        return DONE
    team.awaited_rank = rank
    return FAILED_DAMAGED


cdef Line *publish_buffers(Team *team, const PeerBuffers *buffers, size_t nbytes,
                           bint staged_by_all) noexcept nogil:
    """Into the own slot of a new synchronising exchange; ``nbytes``: the length to publish.

    ``staged_by_all``: say that instead.
    """
    cdef PeerBuffers published = buffers[0]
    cdef Line *line
    if staged_by_all:
        published.send = STAGED_BY_ALL
        published.recv = STAGED
    team.exchanges += 1
    line = line_in_exchange(team, team.rank)
    memcpy(line.payload, &published, sizeof(published))
    post_line_length(team, line, team.exchanges, nbytes)
    return line


cdef int learn_buffers(Team *team, size_t send_bytes, size_t recv_bytes, const void **send_at,
                       const void **recv_at, size_t *lengths, bint staged_by_all) noexcept nogil:
    """What the others published in this exchange: their buffers' addresses here, NULL where staged.

    ``recv_at``: NULL where only what ranks send is published. ``lengths``: NULL where all agree on
    ``send_bytes``; else each rank's own length is put there, and bounds what it sends.
    ``staged_by_all``: this rank said so.
    """
    cdef PeerBuffers buffers
    cdef Line *line
    cdef size_t nbytes = send_bytes
    cdef int i, rank, status
    for i in range(1, team.size):
        rank = next_rank(team, i)
        line = line_in_exchange(team, rank)
        if lengths == NULL:
            status = wait_line(team, line, team.exchanges, rank)
        else:
            status = wait_line_with_length(team, line, team.exchanges, rank)
            # Read once: what is checked is what is used (protocol rule 10).
            lengths[rank] = nbytes = load_relaxed(&line.nbytes)
        if status != DONE:
            return status
        read_buffers(line, &buffers)
        if buffers.send == STAGED_BY_ALL:
            staged_by_all = True
            continue
        status = find(team, rank, buffers.send, nbytes, <char **> &send_at[rank])
        if status == DONE and recv_at != NULL:
            status = find(team, rank, buffers.recv, recv_bytes, <char **> &recv_at[rank])
        if status != DONE:
            return status
    if staged_by_all:
        for rank in range(team.size):
            send_at[rank] = NULL
            if recv_at != NULL:
                recv_at[rank] = NULL
    return DONE


cdef int still_in_the_call(Team *team, int rank) noexcept nogil:
    """After the last read of ``rank``'s array: DONE unless it gave up meanwhile.

    A rank that fails in a call (a signal's exception, a timeout) returns without waiting for its
    readers, and its program may change the array. It poisons its word before; so who has read
    anything of that change sees the poison behind these reads.
    """
    fence_acquire()
    if load_acquire(&status_of(&team.layout, team.base, rank).poison) == 0:
        return DONE
    team.awaited_rank = rank
    return FAILED_POISONED


cdef int all_still_in_the_call(Team *team) noexcept nogil:
    cdef int i, status = DONE
    for i in range(1, team.size):
        if status == DONE:
            status = still_in_the_call(team, next_rank(team, i))
    return status


cdef int end_in_agreement(Team *team) noexcept nogil:
    """The exchange that proves that nobody uses another rank's arrays any more.

    Nor that anybody read what a rank changed after it gave up: who has read such data sees the
    poison behind them and does not post, so nobody passes. Looked at before posting, since once
    all have posted the call is complete, and a rank may give the communicator up by right.
    """
    cdef int status = all_still_in_the_call(team)
    return barrier_all_read(team) if status == DONE else status
