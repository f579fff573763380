from libc.stdint cimport int64_t

from smcoll.buffers.blocks cimport Sides
from smcoll.coll.truncation cimport Truncation
from smcoll.engine.engine cimport Engine


cdef enum:
    NOT_PLAIN = 16             # beside what the engine returns: the arguments are to be parsed


cdef int move_rooted(Engine engine, int collective, Sides sides, int root) except -1
cdef int move_to_all(Engine engine, Sides sides) except -1
cdef check_truncated(const Truncation *truncation)
cdef list gather_counts(comm, Engine engine, int64_t mine)
