from libc.stdint cimport uint64_t

from smcoll.coll.pipeline cimport Plan
from smcoll.coll.routes cimport ROUTE_CLASSES, RouteChoice
from smcoll.coll.streams cimport Stream
from smcoll.engine.membership cimport Member
from smcoll.memory.cross_memory cimport OtherProcess
from smcoll.memory.heap cimport HeapView

# What the engine's collectives return.
cdef enum:
    CARRIED_OUT = 0
    USE_MPI = 1                # agreed by all ranks: the shared memory could not be had

# What is reserved when a call first needs it.
cdef enum:
    DATA_REGIONS = 0
    STREAMS = 1


cdef class MemberWithMemory(Member):
    cdef readonly bint data_refused
    cdef readonly bint streams_refused
    cdef const void **sources
    cdef object heaps          # keeps the peers' heaps mapped
    cdef HeapView *heap_views
    cdef readonly dict direct_sizes       # from where on messages are read in heaps, by collective
    cdef readonly dict kernel_copy_sizes  # from where on they may do so, by collective
    cdef bint measures_scatter, measures_alltoall   # whether they do where it is faster
    cdef RouteChoice scatter_routes[ROUTE_CLASSES]
    cdef RouteChoice alltoall_routes[ROUTE_CLASSES]
    cdef OtherProcess *processes   # where the ranks can read each other's memory
    cdef Stream *streams       # one per rank, once the streams are reserved

    cdef void keep(self, const void *buffer) noexcept nogil
    cdef int have_data_regions(self, int collective, const Plan *plan, size_t nbytes,
                               uint64_t signature) except -1
    cdef int have_streams(self, uint64_t signature) except -1
    cdef reserve_part(self, int part)
    cdef map_of_peers(self, int part)
    cdef reserve_mine(self, int part, size_t wanted)
    cdef int reserve(self, int part, uint64_t signature, uint64_t nbytes) except -1
