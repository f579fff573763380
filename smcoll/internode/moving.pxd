from libc.stdint cimport uint64_t

from smcoll.coll.allgather cimport Gathering
from smcoll.internode.span cimport Span

cdef int bcast(Span span, char *buffer, size_t nbytes, int root) except -1
cdef int allgather(Span span, Gathering *blocks) except -1
cdef bint is_bundled(Span span, size_t longest) except -1
cdef uint64_t counts_hash(const Gathering *blocks, int size) noexcept
cdef bint is_chained(Span span, size_t nbytes) except -1
