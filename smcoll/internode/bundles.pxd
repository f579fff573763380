from smcoll.buffers.messages cimport Messages
from smcoll.internode.span cimport Span

cdef int exchange(Span span, int collective, int root, Messages messages) except -1
