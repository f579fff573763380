cimport cython
from libc.stdint cimport uint64_t

from smcoll.coll.streams cimport Stream
from smcoll.engine.call cimport CallProtocol
from smcoll.engine.member cimport Member
from smcoll.segment cimport Mapping
from smcoll.sync.team cimport Team

# What the engine's collectives return.
cdef enum:
    CARRIED_OUT = 0
    USE_MPI = 1                # agreed by all ranks: the shared memory could not be had

# What is reserved when a call first needs it.
cdef enum:
    DATA_REGIONS = 0
    STREAMS = 1


@cython.final
cdef class Reservation:
    cdef Member member
    cdef CallProtocol protocol
    cdef Mapping mapping
    cdef Team *team
    cdef readonly bint data_refused
    cdef readonly bint streams_refused
    cdef Stream *streams       # one per rank, once the streams are reserved

    cdef int have_data_regions(self, uint64_t signature, size_t nbytes) except -1
    cdef int have_streams(self, uint64_t signature, uint64_t nbytes=*) except -1
    cdef reserve_part(self, int part)
    cdef map_of_peers(self, int part)
    cdef reserve_mine(self, int part, size_t wanted)
    cdef int reserve(self, int part, uint64_t signature, uint64_t nbytes) except -1
