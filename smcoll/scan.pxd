from smcoll.barrier cimport Team
from smcoll.kernels cimport Operation
from smcoll.pipeline cimport Call


cdef int scan_inline(Team *team, const char *send, char *recv, size_t nbytes, size_t elements,
                     const Operation *operation, bint exclusive,
                     const void **sources) noexcept nogil
cdef int scan_direct(Call *call, bint exclusive, bint pipelined,
                     size_t section_bytes) noexcept nogil
