from smcoll.coll.pipeline cimport Call
from smcoll.sync.domains cimport DomainView

# Dissemination's roles. In each domain `inside` ranks take part, in `across` domains; both are
# powers of two. The others are excess: they give their data away before and get the result after.
cdef struct Layout:
    int inside, across
    int steps_inside, steps_across


cdef void lay_out(const DomainView *view, Layout *layout) noexcept nogil
cdef int source_of(const DomainView *view, const Layout *layout, int rank, int step) noexcept nogil
cdef int allreduce_dissemination(Call *call) noexcept nogil
