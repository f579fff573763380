from smcoll.nodes.span cimport Span
from smcoll.streams cimport Transfer

cdef int exchange(Span span, int collective, int root, Transfer *outgoing, int sends,
                  Transfer *incoming, int receives, list grown) except -1
