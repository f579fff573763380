from smcoll.coll.reduce_scatter cimport Partition
from smcoll.internode.span cimport Reduction, Span

cdef int barrier(Span span) except -1
cdef int reduce_to_root(Span span, const Reduction *reduction, int root) except -1
cdef int allreduce(Span span, const Reduction *reduction) except -1
cdef bint is_sliced(Span span, size_t nbytes) except -1
cdef int users_of_network(Span span)
cdef int reduce_scatter(Span span, const Reduction *reduction, const Partition *blocks) except -1
cdef int scan(Span span, const Reduction *reduction, bint exclusive) except -1
