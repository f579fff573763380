from smcoll.internode.span cimport Reduction, Span

cdef int allreduce_between(Span span, const Reduction *reduction, char *vector, size_t elements,
                           list peers) except -1
cdef str chosen_between(Span span, size_t nbytes)
