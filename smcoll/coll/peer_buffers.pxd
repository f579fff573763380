from libc.stdint cimport uint64_t

from smcoll.base.atomics cimport load_relaxed
from smcoll.segment cimport Line
from smcoll.sync.team cimport Team


# What a rank says of its buffers of a call: offsets in its heap, or STAGED. `send` STAGED_BY_ALL:
# all ranks take all buffers of this call as STAGED.
cdef struct PeerBuffers:
    uint64_t send
    uint64_t recv
    # In an Allgather of two ranks:
    uint64_t room              # bytes at `recv`
    uint64_t is_far            # on rank 0, which measures it: the other one's core


cdef uint64_t own_offset(const Team *team, const void *address, size_t nbytes) noexcept nogil
cdef int find(Team *team, int rank, uint64_t offset, size_t nbytes, char **address) noexcept nogil
cdef Line *publish_buffers(Team *team, const PeerBuffers *buffers, size_t nbytes,
                           bint staged_by_all) noexcept nogil
cdef int learn_buffers(Team *team, size_t send_bytes, size_t recv_bytes, const void **send_at,
                       const void **recv_at, size_t *lengths, bint staged_by_all) noexcept nogil
cdef int still_in_the_call(Team *team, int rank) noexcept nogil
cdef int all_still_in_the_call(Team *team) noexcept nogil
cdef int end_in_agreement(Team *team) noexcept nogil


# What another rank published in a line that was acquired. Each word is read once: what is checked
# (`find`) is what is used (protocol rule 10).
cdef inline uint64_t read_offset(const Line *line) noexcept nogil:
    return load_relaxed(<const uint64_t *> line.payload)


# Behind the place of a message: where it lies in its sender's private memory, or 0.
cdef inline uint64_t read_address(const Line *line) noexcept nogil:
    return load_relaxed(<const uint64_t *> line.payload + 1)


# How long its chunks are. (Before that: with which stores they are written.)
cdef inline size_t read_chunk(const Line *line) noexcept nogil:
    return load_relaxed(<const uint64_t *> line.payload + 3)


cdef inline void read_buffers(const Line *line, PeerBuffers *buffers) noexcept nogil:
    buffers.send = load_relaxed(<const uint64_t *> line.payload)
    buffers.recv = load_relaxed(<const uint64_t *> line.payload + 1)
    buffers.room = load_relaxed(<const uint64_t *> line.payload + 2)
    buffers.is_far = load_relaxed(<const uint64_t *> line.payload + 3)
