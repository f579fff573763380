cimport cython

from smcoll.base.signature cimport COLLECTIVES
from smcoll.coll.pipeline cimport Call
from smcoll.coll.routes cimport RouteChoice
from smcoll.coll.streams cimport Transfer
from smcoll.engine.member cimport Member
from smcoll.memory.cross_memory cimport OtherProcess
from smcoll.memory.heap cimport HeapView


@cython.final
cdef class PeerMemory:
    cdef Member member
    cdef object heaps          # keeps the peers' heaps mapped
    cdef HeapView *heap_views
    cdef readonly dict direct_sizes       # from where on messages are read in heaps, by collective
    cdef readonly dict kernel_copy_sizes  # from where on they may do so, by collective
    cdef readonly set measured_routes     # of these, those in which staging may prove faster
    cdef readonly set measured_in_heaps   # collectives in which staging may turn out to be faster
    # By collective: ROUTE_CLASSES choices where they do so if it is faster; else NULL. Through the
    # kernel; in heaps.
    cdef RouteChoice *routes[COLLECTIVES]
    cdef RouteChoice *heap_routes[COLLECTIVES]
    cdef int shared_heap[COLLECTIVES]     # its number where rank 0 chooses so for all; else -1
    cdef bint chooses_for_all  # this is that rank
    cdef OtherProcess *processes   # where the ranks can read each other's memory

    cdef void keep(self, const void *buffer) noexcept nogil
    cdef bint may_be_read(self, int collective, const Transfer *outgoing, int sends,
                          RouteChoice **choice) noexcept
    cdef tuple describe_route(self, int collective, size_t handed_out)
    cdef RouteChoice *choice_in_heap(self, int collective, const Transfer *outgoing,
                                     int sends) noexcept
    cdef RouteChoice *choose_for_all(self, int collective, Call *call) noexcept nogil
