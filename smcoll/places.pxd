from libc.stdint cimport uint64_t

from smcoll.barrier cimport Team
from smcoll.segment cimport Line


# What a rank says of its buffers of a call: offsets in its heap, or STAGED.
cdef struct Places:
    uint64_t send
    uint64_t recv


cdef uint64_t place_of(const Team *team, const void *address, size_t nbytes) noexcept nogil
cdef int find(Team *team, int rank, uint64_t offset, size_t nbytes, char **address) noexcept nogil
cdef Line *publish_places(Team *team, const Places *places, size_t nbytes) noexcept nogil
