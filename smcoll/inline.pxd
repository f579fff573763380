from smcoll.kernels cimport Operation
from smcoll.team cimport Team
from smcoll.trees cimport TreeView


cdef int allreduce_inline(Team *team, const char *send, char *recv, size_t nbytes,
                          size_t elements, const Operation *operation,
                          const void **sources) noexcept nogil
cdef int bcast_inline(Team *team, char *buffer, size_t nbytes, int root,
                      const TreeView *tree) noexcept nogil
cdef int reduce_inline(Team *team, const char *send, char *recv, size_t nbytes, size_t elements,
                       const Operation *operation, int root, const TreeView *tree,
                       const void **sources) noexcept nogil
