from smcoll.interpose.entries cimport Entry
from smcoll.interpose.functions cimport Arguments


cdef int serve_any(Entry *entry, const Arguments *call) noexcept with gil
cdef void tell_error(Entry *entry) noexcept with gil
