from libc.stdint cimport int64_t

from smcoll.engine.engine cimport Engine


cdef list gather_counts(comm, Engine engine, int64_t mine)
