cimport cython
from libc.stdint cimport uint64_t

from smcoll.engine.call cimport CallProtocol
from smcoll.engine.statistics cimport Tally


@cython.final
cdef class Fallback:
    cdef CallProtocol protocol
    cdef list unfinished       # requests of MPI calls that were interrupted

    cdef carry_out(self, start_call, int collective, int root, int op, int element_type,
                   uint64_t nbytes, Tally *tally)
