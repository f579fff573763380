from libc.stdint cimport int64_t

from smcoll.comm.c_api cimport smcoll_api
from smcoll.interpose.entries cimport Entry
from smcoll.interpose.functions cimport Arguments, word

cdef enum:
    # What `serve_plain` returns besides MPI's codes.
    NOT_SERVED = -1            # MPI is to carry the call out
    NOT_PLAIN = -2             # a method of Python's

cdef const smcoll_api *api

cdef int serve_plain(Entry *entry, const Arguments *call) noexcept nogil


cdef inline int64_t count_of(const Arguments *call, word count) noexcept nogil:
    return count if call.wide else <int> count


cdef inline int64_t item(const Arguments *call, word array, int i) noexcept nogil:
    return (<const int64_t *> array)[i] if call.wide else (<const int *> array)[i]
