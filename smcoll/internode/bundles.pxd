from smcoll.coll.streams cimport Transfer
from smcoll.internode.span cimport Span

cdef int exchange(Span span, int collective, int root, Transfer *outgoing, int sends,
                  Transfer *incoming, int receives, list grown) except -1
